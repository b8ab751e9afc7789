"""The configuration of an experiment: a YAML file, overrides, and what is allowed in them.

A *component* (data set, partition, model, algorithm, aggregator, client rule, attack) is written as
a bare name or as a mapping with ``name`` and that builder's arguments. An argument may be a component in
its turn, to any depth. Which names and arguments exist is decided in
:mod:`fedjax_drag.experiment.build.build`; everything else is checked here.
"""

import dataclasses
import hashlib
import json
import re
import types
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedjax_drag import checks
from fedjax_drag.experiment.config.components import (
    COMPONENTS,
    MAPPING,
    OPTIONAL,
    SCHEDULED,
    Component,
    merge_component,
    split,
    unknown_key,
)
from fedjax_drag.experiment.config.yaml_text import check_literal, one_line, parse, read_file
from fedjax_drag.simulation.settings import check_batch_size

EITHER: Mapping[str, tuple[str, Any]] = {
    "local_steps": ("local_epochs", None),
    "local_epochs": ("local_steps", None),
    "byzantine_fraction": ("num_byzantine", None),
    "num_byzantine": ("byzantine_fraction", 0.0),
}
"""Keys that say the same in two ways: to set one gives the other the value that says nothing."""

_LONGEST = 200
"""Bytes of a folder's name at most, for which file systems allow 255."""

_LONGEST_FOLDER = 100
"""Bytes of a folder's name at most that is made of overrides; a longer one is hard to read."""

_LARGEST = 2**31 - 1
"""What a count on the device can be, and a step size, of which no larger one makes sense."""

_PHRASES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a string"}


@dataclasses.dataclass(frozen=True)
class Config:
    """One experiment, or several that are compared.

    Attributes:
      name: title of the run; the command line puts its results into ``runs/<name>`` (:func:`folder_name`).
      data: data set with ``data_dir`` and ``source``.
      partition: how the examples are split over clients.
      model: architecture; ``num_classes`` comes from the data.
      algorithm: federated method; ``from_aggregator`` joins ``aggregator`` and ``client``.
      aggregator: server-side rule (also the one inside a two-sided ``algorithm``).
      client: what a client runs when the algorithm does not bring its own rule.
      root_client: what the server runs on its root data, for rules that need it.
      attack: what malicious clients do, or None.
      byzantine_fraction: fraction of malicious clients, in [0, 1].
      num_byzantine: their number, instead of ``byzantine_fraction``, or None.
      byzantine_of: whose part they are: the ``federation``'s, the same for the whole run, or each ``cohort``'s.
      rounds: communication rounds.
      cohort_size: clients in a round, S.
      local_steps: local SGD steps of a client in a round, U, or None if ``local_epochs`` is given.
      local_epochs: passes of a client over its data in a round, or None if ``local_steps`` is given.
      batch_size: examples in a local step, B, or ``full`` for all of the client's.
      step_size: local step size, a number or a schedule.
      local_optimizer: what transforms the directions of the local steps, or None.
      loss: what the clients minimise.
      augmentation: how training inputs are changed at random, or None.
      root_size: examples of the server's root data, for rules that need it, or None for 3,000 or a tenth of the
        data they are drawn from where that is less.
      root_bias: least share of the root data that are of class 0.
      root_source: what the root data are drawn from: ``benign``, the benign clients in equal parts, or ``all``, the
        examples of all clients at random.
      eval_every: rounds between evaluations on the test set.
      seed: of everything random: initial model, partition, malicious clients, cohorts, batches.
      nonfinite: ``reject`` or ``propagate`` messages that are not finite, or too long for sums in float32.
      clients_axis: how a round's clients are computed: ``vmap``, ``map``, or ``auto``, the faster one as measured.
      clients_per_chunk: how many clients at a time under ``map``, or None for one.
      mesh: ``cores`` to shard the clients over one device for each CPU core, ``all`` over all devices of all processes,
        ``auto`` for the cores where they divide the cohort, or None for a single device.
      compute_dtype: in which the model runs forward and backward, ``float32`` or ``bfloat16``.
      shard_data: whether the devices of ``mesh`` divide the training examples among them, instead of each holding all.
      aggregation: whether messages are added up as they come: ``auto`` (where the rule can), ``stack`` or ``stream``.
      rounds_per_compile: rounds in one compiled call, or None for the engine's choice.
      diagnostics: whether the rule's per-client diagnostics are recorded.
      client_state: where the rows that a method keeps for every client lie, "device" or "host".
      time_clients: whether a client's local step is timed before the first round.
      stop_on_divergence: whether the run ends when its parameters are not finite any more.
      keep_checkpoints: how many of the newest checkpoints are kept.
      keep_best: whether the checkpoint with the highest test accuracy is kept as well.
      compare: None, or a mapping from a label to the keys that this variant changes.
    """

    name: str = "run"
    data: Component = dataclasses.field(default_factory=partial(Component, "digits"))
    partition: Component = dataclasses.field(
        default_factory=partial(Component, "dirichlet", {"num_clients": 40, "beta": 0.1})
    )
    model: Component = dataclasses.field(default_factory=partial(Component, "mlp"))
    algorithm: Component = dataclasses.field(default_factory=partial(Component, "from_aggregator"))
    aggregator: Component = dataclasses.field(default_factory=partial(Component, "fedavg"))
    client: Component = dataclasses.field(default_factory=partial(Component, "sgd"))
    root_client: Component = dataclasses.field(default_factory=partial(Component, "sgd"))
    attack: Component | None = None
    byzantine_fraction: float = 0.0
    num_byzantine: int | None = None
    byzantine_of: str = "federation"
    rounds: int = 200
    cohort_size: int = 10
    local_steps: int | None = 5
    local_epochs: float | None = None
    batch_size: Any = 10
    step_size: Any = 0.01
    local_optimizer: Component | None = None
    loss: Component = dataclasses.field(default_factory=partial(Component, "cross_entropy"))
    augmentation: Component | None = None
    root_size: int | None = None
    root_bias: float = 0.0
    root_source: str = "benign"
    eval_every: int = 10
    seed: int = 0
    nonfinite: str = "reject"
    clients_axis: str = "auto"
    clients_per_chunk: int | None = None
    mesh: str | None = None
    shard_data: bool = False
    aggregation: str = "auto"
    compute_dtype: str = "float32"
    rounds_per_compile: int | None = None
    diagnostics: bool = True
    client_state: str = "device"
    time_clients: bool = True
    stop_on_divergence: bool = True
    keep_checkpoints: int = 2
    keep_best: bool = True
    compare: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Checks ranges; builders and the engine check what depends on more than one value."""
        if not slug(self.name):
            raise ValueError(f"name={self.name!r}: must have at least one letter or digit")
        checks.in_range("byzantine_fraction", self.byzantine_fraction, 0.0, 1.0)
        if self.num_byzantine is not None:
            checks.count("num_byzantine", self.num_byzantine)
        checks.one_of("byzantine_of", self.byzantine_of, ("federation", "cohort"))
        checks.in_range("root_bias", self.root_bias, 0.0, 1.0)
        checks.one_of("root_source", self.root_source, ("benign", "all"))
        if not isinstance(self.step_size, Component):
            if not checks.is_concrete(self.step_size):
                raise ValueError(f"step_size={self.step_size!r}: must be a number or a schedule, {MAPPING}")
            checks.positive("step_size", self.step_size)
            if self.step_size > _LARGEST:
                raise ValueError(f"step_size={self.step_size!r}: must be at most {_LARGEST}")
        if (self.local_steps is None) == (self.local_epochs is None):
            given = f"local_steps={self.local_steps!r}, local_epochs={self.local_epochs!r}"
            raise ValueError(f"{given}: must be exactly one of the two, the other null")
        check_batch_size(self.batch_size)
        if self.local_epochs is not None:
            checks.positive("local_epochs", self.local_epochs)
        for key in ("rounds", "cohort_size", "eval_every", "keep_checkpoints"):
            checks.count(key, getattr(self, key), 1, _LARGEST)
        for key in ("local_steps", "root_size", "clients_per_chunk", "rounds_per_compile"):
            if getattr(self, key) is not None:
                checks.count(key, getattr(self, key), 1, _LARGEST)
        checks.count("seed", self.seed, 0, 2**32 - 1)
        checks.one_of("nonfinite", self.nonfinite, ("reject", "propagate"))
        checks.one_of("client_state", self.client_state, ("device", "host"))
        checks.one_of("clients_axis", self.clients_axis, ("auto", "vmap", "map"))
        checks.one_of("compute_dtype", self.compute_dtype, ("float32", "bfloat16"))
        checks.one_of("aggregation", self.aggregation, ("auto", "stack", "stream"))
        if self.mesh is not None:
            checks.one_of("mesh", self.mesh, ("auto", "cores", "all"))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Config":
        """Checks a mapping as it is read from YAML; keys it leaves out take their defaults.

        Args:
          mapping: configuration keys and values.

        Returns:
          The configuration. The variants under ``compare`` are checked by :meth:`variants`.

        Raises:
          ValueError: one line naming the key, its value and what is allowed.
        """
        check_literal(mapping)
        merged = merge(_DEFAULTS, mapping)
        if not isinstance(merged["compare"], Mapping | types.NoneType):
            allowed = "null or a mapping from labels to the keys that each changes"
            raise ValueError(f"compare={merged['compare']!r}: must be {allowed}")
        present = {key: merged[key] for key in COMPONENTS if key not in OPTIONAL or merged[key] is not None}
        present |= {key: merged[key] for key in SCHEDULED if isinstance(merged[key], Mapping)}
        components = {key: split(key, value) for key, value in present.items()}
        scalars = {key: value for key, value in merged.items() if key not in COMPONENTS and key not in present}
        try:
            config = OmegaConf.to_object(OmegaConf.merge(_SCHEMA, scalars))
        except OmegaConfBaseException as error:
            raise ValueError(_explain(error, scalars)) from None
        assert isinstance(config, Config)
        return dataclasses.replace(config, **components)

    def to_mapping(self) -> dict[str, Any]:
        """The configuration as plain values, as :meth:`from_mapping` reads them."""
        mapping = dataclasses.asdict(self)
        for key in (*COMPONENTS, *SCHEDULED):
            if isinstance(mapping[key], Mapping):
                mapping[key] = {"name": mapping[key]["name"], **mapping[key]["arguments"]}
        return mapping

    def variants(self) -> dict[str, "Config"]:
        """The runs of a comparison by label: this configuration with each variant's changes.

        Returns:
          Single-run configurations named by their label, in the order written; empty without
          ``compare``.

        Raises:
          ValueError: a variant is not a mapping, has a wrong key or value, or compares again; or
            two labels would share a folder.
        """
        variants: dict[str, Config] = {}
        folders: dict[str, str] = {}
        for label, changes in (self.compare or {}).items():
            where = f"compare.{label}"
            changes = {} if changes is None else changes
            if not isinstance(changes, Mapping):
                raise ValueError(f"{where}={changes!r}: must be a mapping of the keys that it changes")
            if "compare" in changes or "name" in changes:
                raise ValueError(f"{where}: must not contain 'compare' or 'name'")
            if not slug(label) or slug(label) in folders:
                clash = f", which shares the folder of {folders[slug(label)]!r}" if slug(label) else ""
                raise ValueError(f"compare label {label!r}{clash}: must have letters or digits of its own")
            folders[slug(label)] = label
            base = self.to_mapping() | {"name": label, "compare": None}
            try:
                variants[label] = Config.from_mapping(merge(base, changes))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        return variants


def load(source: str | Path | Mapping[str, Any] | Config, overrides: Iterable[str | Mapping[str, Any]] = ()) -> Config:
    """Reads a configuration and applies overrides.

    Args:
      source: path of a YAML file, a mapping, or a :class:`Config`.
      overrides: ``key=value`` strings with dotted keys, applied in turn: ``rounds=50``,
        ``aggregator.c=0.5``, ``aggregator=krum``, ``aggregator.aggregator.name=krum``. One that
        names another component than the one it changes replaces it, arguments included. Or mappings of the keys to
        change.

    Returns:
      The checked configuration.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file or an override is not valid.
    """
    mapping = read(source)
    if "axes" in mapping:
        raise ValueError("axes: belong to a sweep, not to a run; give this configuration to 'fedjax-drag sweep'")
    parsed = parse(overrides)
    _check_either(parsed)
    for changes in parsed:
        mapping = merge(mapping, changes, defaults=_DEFAULTS)
    return Config.from_mapping(mapping)


def read(source: str | Path | Mapping[str, Any] | Config) -> dict[str, Any]:
    """What a configuration says, not yet checked.

    Args and exceptions are those of :func:`load`.
    """
    if isinstance(source, Config):
        return source.to_mapping()
    return dict(source) if isinstance(source, Mapping) else read_file(Path(source))


def merge(
    base: Mapping[str, Any], changes: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """``base`` with ``changes`` applied.

    A component is merged argument by argument, and so are those inside it, unless ``changes`` gives it another
    name: then it is replaced, since the old one's arguments mean nothing to the new one.

    Args:
      base: configuration keys and values.
      changes: keys to change; unknown ones are refused.
      defaults: what a component that ``base`` leaves out is merged with.

    Returns:
      A new mapping.
    """
    result = dict(base)
    known = [field.name for field in dataclasses.fields(Config)]
    for key, value in changes.items():
        unknown_key(key, known)
        if key in COMPONENTS or (key in SCHEDULED and isinstance(value, Mapping)):
            result[key] = merge_component(base.get(key, (defaults or {}).get(key)), value)
        elif key == "compare" and isinstance(base.get(key), Mapping) and isinstance(value, Mapping):
            result[key] = _merge_compare(base[key], value)
        else:
            result[key] = value
            other, nothing = EITHER.get(key, (key, None))
            if value is not None and other not in changes:
                result[other] = nothing
    return result


def slug(label: str) -> str:
    """``label`` as a folder name: lower case, anything but letters, digits, ``.`` and ``_`` a dash; its beginning."""
    plain = re.sub(r"[^\w.]+", "-", label.lower()).strip("-._")
    return plain.encode()[:_LONGEST].decode(errors="ignore").rstrip("-._")


def folder_name(name: str, overrides: Iterable[str], without: Iterable[str] = ()) -> str:
    """The name of a results folder, such as ``quickstart,aggregator=krum,attack=sign_flip``.

    Args:
      name: of the configuration.
      overrides: ``key=value`` strings, in the order in which they are to appear.
      without: keys that are left out; ``name``, which ``name`` says already, always is.

    Returns:
      Letters, digits and ``._=+-,`` only; one with overrides has at most :data:`_LONGEST_FOLDER` bytes, its end
      being a hash of what was cut.
    """
    omitted = {"name", *without}
    named = [override for override in overrides if override.partition("=")[0] not in omitted]
    plain = [re.sub(r"[^\w.=+-]+", "-", re.sub(r"[]['\"{}\s]+", "", override)).strip("-.") for override in named]
    whole = ",".join([slug(name), *plain])
    if not named or len(whole.encode()) <= _LONGEST_FOLDER:
        return whole
    checksum = hashlib.sha256(json.dumps([name, *named]).encode()).hexdigest()[:8]
    begin = whole.encode()[: _LONGEST_FOLDER - len(checksum) - 1].decode(errors="ignore")
    return f"{begin.rstrip('-._,=')}-{checksum}"


def flatten(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and values of a configuration, for comparing two of them."""
    mapping = config.to_mapping() if isinstance(config, Config) else config
    return dict(entry for key, value in mapping.items() for entry in _flat(str(key), value))


def _flat(key: str, value: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        return [(key, value)]
    return [entry for inner, below in value.items() for entry in _flat(f"{key}.{inner}", below)]


def _check_either(overrides: Iterable[Mapping[str, Any]]) -> None:
    """Refuses overrides that say the same in two ways, of which one would silently win."""
    given = {key: value for changes in overrides for key, value in changes.items() if key in EITHER}
    for key, value in given.items():
        other, nothing = EITHER[key]
        if value is not None and given.get(other, nothing) not in (None, nothing) and value != EITHER[other][1]:
            raise ValueError(f"{key}={value!r}, {other}={given[other]!r}: must be exactly one of the two")


def _merge_compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for label, changes in new.items():
        both = isinstance(result.get(label), Mapping) and isinstance(changes, Mapping)
        result[label] = merge(result[label], changes) if both else changes
    return result


def _explain(error: OmegaConfBaseException, scalars: Mapping[str, Any]) -> str:
    """What OmegaConf found, as ``key=value: must be ...``."""
    key = str(getattr(error, "full_key", "") or "")
    field = next((f for f in dataclasses.fields(Config) if f.name == key), None)
    if field is None or key == "compare":
        return f"{key}: {one_line(error)}"
    parts = str(getattr(field.type, "__name__", field.type)).split(" | ")
    allowed = " or ".join(_PHRASES.get(part, "null" if part == "None" else part) for part in parts)
    sweep = f"; a sweep takes lists: fedjax-drag sweep CONFIG 'axes.{key}={scalars[key]}'"
    return f"{key}={scalars[key]!r}: must be {allowed}{sweep if isinstance(scalars[key], list) else ''}"


_DEFAULTS = Config().to_mapping()

_SCHEMA = OmegaConf.structured(Config)  # takes 16 ms, of which a sweep with many cells would have many
