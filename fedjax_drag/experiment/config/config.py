"""The configuration of an experiment: its keys, their defaults, and what is allowed in them.

A *component* (data set, partition, model, algorithm, aggregator, client rule, attack) is written as
a bare name or as a mapping with ``name`` and that builder's arguments; the user's own as in
:mod:`fedjax_drag.experiment.config.own`. An argument may be a component in
its turn, to any depth. Which names and arguments exist is decided in
:mod:`fedjax_drag.experiment.build.resolve`; everything else is checked here.
"""

import copy
import dataclasses
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fedjax_drag import checks
from fedjax_drag.experiment.config.components import (
    COMPONENTS,
    MAPPING,
    SCHEDULED,
    Component,
    each,
    fits,
    phrase,
    split_all,
    unknown_key,
)
from fedjax_drag.experiment.config.own import own_names
from fedjax_drag.ops.paths import check_patterns
from fedjax_drag.simulation import option_groups as groups
from fedjax_drag.simulation import options
from fedjax_drag.simulation.options import count, documented, option, with_default

_MOST_BYTES = 200
"""Of a folder's name; file systems allow 255."""


def slug(label: str) -> str:
    """``label`` as a folder name: lower case, a dash for anything but letters, digits, ``.`` and ``_``; cut if long."""
    plain = re.sub(r"[^\w.]+", "-", label.lower()).strip("-._")
    return plain.encode()[:_MOST_BYTES].decode(errors="ignore").rstrip("-._")


def check_name(key: str, value: str) -> None:
    """Refuses a name that no folder can have."""
    if not slug(value):
        raise ValueError(f"{key}={value!r}: must have at least one letter or digit")


def check_labels(where: str, labels: Iterable[str]) -> None:
    """Refuses labels that no folder can have, or that would share one."""
    folders: dict[str, str] = {}
    for label in labels:
        folder = slug(label)
        if not folder or folder in folders:
            clash = f", which shares the folder of {folders[folder]!r}" if folder else ""
            raise ValueError(f"{where} label {label!r}{clash}: must have letters or digits of its own")
        folders[folder] = label


def _check_step_size(key: str, value: Any) -> None:
    if isinstance(value, Component):
        return
    if not checks.is_concrete(value):
        raise ValueError(f"{key}={value!r}: must be a number or a schedule, {MAPPING}")
    checks.positive(key, value)
    if value > options.LARGEST:
        raise ValueError(f"{key}={value!r}: must be at most {options.LARGEST}")


def component(name: str, **arguments: Any) -> Any:
    """The field of a component: which one is the default, with which arguments."""
    return dataclasses.field(default_factory=partial(Component, name, arguments))


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(
    groups.EarlyStopping, groups.Measurement, groups.Execution, groups.Adversary, groups.Participation, groups.LocalWork
):
    """One experiment, or several that are compared; :func:`check` makes it.

    Attributes:
      name: title of the run; the command line puts its results into ``runs/<name>``.
      data: data set with ``data_dir`` and ``source``.
      partition: how the examples are split over clients.
      model: architecture; ``num_classes`` comes from the data.
      algorithm: federated method; ``from_aggregator`` joins ``aggregator`` and ``client``.
      aggregator: server-side rule (also the one inside a two-sided ``algorithm``).
      client: what a client runs when the algorithm does not bring its own rule.
      privacy: differential privacy of the clients, by noise around ``aggregator`` or ``client``, or None.
      root_client: what the server runs on its root data, for rules that need it.
      attack: what malicious clients do, or None.
      compression: what each client's message goes through, or None.
      downlink_compression: what the difference goes through that the server broadcasts, or None.
      selection: who of the clients that can be drawn takes part in a round, or None for uniform draws.
      clock: how long clients take, or None.
      rounds: communication rounds.
      cohort_size: clients in a round, S.
      step_size: local step size, a number or a schedule.
      local_optimizer: what transforms the directions of the local steps, or None.
      trainable: which parameters are trained, patterns of their paths such as ``head`` or ``*/lora_*``; None for all.
      loss: what the clients minimise.
      metrics: what is measured of the predictions, a list; None for the accuracy where the data have classes.
      metric: the name of the one by which rounds and settings are chosen, or ``loss``; None for the accuracy where it
        is measured, else the first, else the loss.
      augmentation: how training inputs are changed at random, or None.
      initial_params: a safetensors file, a results folder or one of its checkpoints, from whose parameters the run
        starts; None to draw them.
      seed: of everything random: initial model, partition, malicious clients, cohorts, batches.
      keep_checkpoints: how many of the newest checkpoints are kept; with 0 none is written, not the best either.
      keep_best: whether the checkpoint that is best by ``metric`` is kept as well: on the validation examples where the
        data have a validation split, else on the test examples. In a sweep whose cells' states have more than 256 MB
        together, the best of those that are written, one in a minute.
      checkpoint_every_seconds: time between two writings of checkpoints, which is what a killed run loses at most,
        beside one evaluation; 0 writes one after every evaluation. A run that ends or is stopped writes them first.
      compare: None, or a mapping from a label to the keys that this variant changes.
    """

    name: str = option(check_name, "run")
    data: Component = component("digits")
    partition: Component = component("dirichlet", num_clients=40, beta=0.1)
    model: Component = component("mlp")
    algorithm: Component = component("from_aggregator")
    aggregator: Component = component("fedavg")
    client: Component = component("sgd")
    privacy: Component | None = None
    root_client: Component = component("sgd")
    attack: Component | None = None
    compression: Component | None = None
    downlink_compression: Component | None = None
    selection: Component | None = None
    clock: Component | None = None
    rounds: int = option(count, 200)
    cohort_size: int = option(count, 10)
    local_steps: Any = with_default(groups.LocalWork, "local_steps", 5)
    local_epochs: Any = with_default(groups.LocalWork, "local_epochs", None)
    batch_size: Any = with_default(groups.LocalWork, "batch_size", 10)
    step_size: Any = option(_check_step_size, 0.01)
    local_optimizer: Component | None = None
    trainable: Any = option(check_patterns, None)
    loss: Component = component("cross_entropy")
    metrics: tuple[Component, ...] | None = None
    metric: str | None = None
    augmentation: Component | None = None
    initial_params: str | None = None
    seed: int = option(partial(checks.count, low=0, high=2**32 - 1), 0)
    mesh: Any = with_default(groups.Execution, "mesh", "auto")
    sharding_rules: Any = with_default(groups.Execution, "sharding_rules", None)
    evaluate_clients: Any = with_default(groups.Measurement, "evaluate_clients", False)
    keep_checkpoints: int = option(partial(checks.count, low=0), 2)
    keep_best: bool = True
    checkpoint_every_seconds: float = option(partial(checks.in_range, low=0.0, high=options.LARGEST), 10.0)
    compare: dict[str, Any] | None = None

    def to_mapping(self) -> dict[str, Any]:
        """The configuration as plain values, the keys of this class first."""
        values = {key: getattr(self, key) for key in _KEYS}
        plain = {key: each(x, Component.to_mapping) for key, x in values.items()}
        return {key: copy.deepcopy([*x] if isinstance(x, tuple) else x) for key, x in plain.items()}


_KEYS = (*Config.__annotations__, *(f.name for f in dataclasses.fields(Config) if f.name not in Config.__annotations__))

DEFAULTS = Config().to_mapping()
"""Every key with its default, as plain values."""


EITHER: Mapping[str, str] = {
    "local_steps": "local_epochs",
    "local_epochs": "local_steps",
    "byzantine_fraction": "num_byzantine",
    "num_byzantine": "byzantine_fraction",
}
"""Keys that give one quantity in two ways: setting one sets the other to None, which stands for "not given"."""

CONDITIONS = frozenset(
    (
        *("data", "partition"),
        *("attack", "byzantine_fraction", "num_byzantine", "byzantine_of", "forged_messages"),
        *("root_size", "root_bias", "root_source"),
        *("availability", "dropout_rate", "steps_drawn", "clock"),
    )
)
"""The data and how they are split, who attacks and how, what the server holds, who answers. Worst cases are over these;
the best setting is over all other keys (the seed is neither), such as rule, method, step size and local work."""


def is_condition(axis: str) -> bool:
    """Whether a key, dotted perhaps, is one of :data:`CONDITIONS` or inside one."""
    return axis.partition(".")[0] in CONDITIONS


def as_keys(written: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of keys, of which some may have the name of the argument of ``fd.simulate``, such as ``num_rounds``.

    Raises:
      ValueError: a key is there by both of its names.
    """
    return options.renamed(written, {argument: key for key, argument in options.SAME.items()})


def merged(mapping: Mapping[str, Any], changes: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Every key with its value: the defaults, changed by a configuration, changed by its overrides.

    A component is merged argument by argument, and so are those inside it, unless a change gives it another
    name: then it is replaced, since the old one's arguments mean nothing to the new one.

    Args:
      mapping: the configuration.
      changes: the keys that each override changes, applied in turn.

    Raises:
      ValueError: a key is unknown, or two changes give one quantity in two ways.
    """
    _check_either(changes)
    written = dict(mapping)
    for change in changes:
        written = _merged(written, change, DEFAULTS)
    return _merged(DEFAULTS, written, {})


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``; ``defaults`` are merged into components that ``base`` leaves out."""
    result = dict(base)
    changes = as_keys(changes)
    for key, value in changes.items():
        if key not in DEFAULTS:
            raise unknown_key(key, [*DEFAULTS, "axes"])
        if key in COMPONENTS or (key in SCHEDULED and isinstance(value, Mapping)):
            result[key] = _merged_component(base.get(key, defaults.get(key)), value)
        elif key == "compare" and isinstance(base.get(key), Mapping) and isinstance(value, Mapping):
            result[key] = _merged_compare(base[key], value)
        else:
            result[key] = value
            if key in EITHER and value is not None and EITHER[key] not in changes:
                result[EITHER[key]] = None
    return result


def _merged_component(old: Any, new: Any) -> Any:
    """``old`` with the arguments that ``new`` gives it, and with those inside them; ``new`` if that is another one."""
    old, new = ({"name": value} if isinstance(value, str) else value for value in (old, new))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    if new.get("name", old.get("name")) != old.get("name"):
        return dict(new)
    nested = [key for key in new if isinstance(old.get(key), Mapping) or isinstance(new[key], Mapping)]
    return {**old, **new, **{key: _merged_component(old.get(key), new[key]) for key in nested}}


def _merged_compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for label, changes in new.items():
        both = isinstance(result.get(label), Mapping) and isinstance(changes, Mapping)
        result[label] = _merged(result[label], changes, {}) if both else changes
    return result


def _check_either(overrides: Sequence[Mapping[str, Any]]) -> None:
    """Refuses overrides that give one quantity in two ways, of which one would silently win."""
    given = {key: value for changes in overrides for key, value in changes.items() if key in EITHER}
    for key, value in given.items():
        other = EITHER[key]
        if value is not None and given.get(other) is not None:
            raise ValueError(f"{key}={value!r}, {other}={given[other]!r}: must be exactly one of the two")


def check(mapping: Mapping[str, Any]) -> Config:
    """Checks the type and the range of every value; what several say together is checked of single runs.

    Args:
      mapping: every key with its value, from :func:`~fedjax_drag.experiment.config.config.merged`.

    Returns:
      The configuration; its components are as written, and its numbers of the types of their keys.

    Raises:
      ValueError: one line naming the key, its value and what is allowed.
    """
    _check_literal(mapping)
    if not isinstance(mapping["compare"], Mapping | types.NoneType):
        allowed = "null or a mapping from labels to the keys that each changes"
        raise ValueError(f"compare={mapping['compare']!r}: must be {allowed}")
    values = dict(mapping)  # the variants under compare are checked one by one
    for key, value in mapping.items():
        if key in COMPONENTS or (key in SCHEDULED and isinstance(value, Mapping)):
            values[key] = split_all(key, value)
        elif key != "compare":
            values[key] = _typed(key, value)
    if checks.is_concrete(epochs := values["local_epochs"]) and abs(epochs) <= options.LARGEST:
        values["local_epochs"] = float(epochs)
    config = Config(**values)
    options.check_options(config)
    return config


def _typed(key: str, value: Any) -> Any:
    """A plain value in the type of its key."""
    for name in own_names(value):
        allowed = "plain values, such as numbers, texts and lists of them, not a Python object"
        raise ValueError(f"{key}={checks.shown(name.part)}: must be {allowed}")
    hint = Config.__dataclass_fields__[key].type
    if hint is Any:
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and fits("", hint):  # a name such as 2024
        return str(value)
    if not fits(value, hint):
        sweep = f"; a sweep takes lists: fedjax-drag sweep CONFIG 'axes.{key}={value}'"
        raise ValueError(f"{key}={value!r}: must be {phrase(hint)}{sweep if isinstance(value, list) else ''}")
    return float(value) if is_number and fits(0.5, hint) and abs(value) <= options.LARGEST else value


def flatten(config: Config | Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Dotted keys and values of a configuration, for comparing two of them; what is inside a key begins with it."""
    flat: dict[str, Any] = {}
    for key, value in (config.to_mapping() if isinstance(config, Config) else config).items():
        flat |= flatten(value, f"{where}{key}.") if value and isinstance(value, Mapping) else {f"{where}{key}": value}
    return flat


_MISSING = "???"
"""OmegaConf's mark of a value that is still to be given."""


def _check_literal(value: Any, where: str = "") -> None:
    """Refuses interpolations: nothing in a configuration is looked up elsewhere, such as in the environment."""
    if isinstance(value, str) and value == _MISSING:  # which OmegaConf would take for the default
        raise ValueError(f"{where}={value!r}: missing; must be given")
    if isinstance(value, str) and "${" in value:
        raise ValueError(f"{where}={value!r}: must be the value itself, without '${{'")
    if isinstance(value, Mapping):
        for key, below in value.items():
            _check_literal(below, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for below in value:
            _check_literal(below, where)
