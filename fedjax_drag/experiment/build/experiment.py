"""From a YAML file, or a mapping, and overrides to an experiment that is ready: read, merged, checked and resolved."""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_drag.checks import shown
from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.config.config import DEFAULTS, Config, check, check_labels, merged
from fedjax_drag.experiment.config.own import OwnName, references, with_own_names
from fedjax_drag.experiment.config.shipped import find
from fedjax_drag.experiment.config.yaml_text import parse, read_file
from fedjax_drag.simulation.option_groups import check_adversary, check_pass

Source = str | Path | Mapping[str, Any] | Config
"""Where a configuration comes from: a YAML file, by its path or by a name that the package has; a mapping of its keys;
or a checked configuration."""

CHOSEN = ("data", "partition")
"""Keys that decide what an experiment is about: their defaults are for first steps."""


class Experiment(NamedTuple):
    """A valid experiment; later steps read it and change nothing.

    Attributes:
      config: the resolved configuration as a whole.
      runs: the resolved configuration of each run, by label: of the variants under ``compare``, or the whole one.
    """

    config: Config
    runs: dict[str, Config]

    def with_mesh(self, mesh: str) -> "Experiment":
        """The same on another mesh; a variant that sets ``mesh`` itself keeps its own."""
        compare: Mapping[str, Any] = self.config.compare or {}
        runs = {
            label: run if "mesh" in (compare.get(label) or {}) else dataclasses.replace(run, mesh=mesh)
            for label, run in self.runs.items()
        }
        return Experiment(dataclasses.replace(self.config, mesh=mesh), runs)


def load_experiment(
    source: Source, overrides: Iterable[str | Mapping[str, Any]] = (), allow_code: bool = False
) -> Experiment:
    """Reads, merges, checks and resolves a configuration and all its variants.

    Args and exceptions are those of :func:`~fedjax_drag.experiment.build.experiment.load`; what several values of a run
    say must go together, in a single one the attack and the number of malicious clients too. Code that ``source``
    refers to is loaded if ``allow_code`` says so, code that ``overrides`` refer to in any case. Warns if the
    configuration gives no data or no partition.
    """
    mapping, changes = read(source), parse(overrides)
    code = Code(allow_code, frozenset(references(changes)))
    config = merged_and_checked(mapping, changes)
    warn_of_fallbacks(mapping, *changes, stacklevel=4)
    if config.compare is None:
        whole = resolve(config, code)
        check_pass(whole)
        check_adversary(config.attack, config.byzantine_fraction, config.num_byzantine)
        return Experiment(whole, {whole.name: whole})
    compared = variants(config)
    if not compared:
        raise ValueError("compare={}: must have at least one label, or be null")
    whole, runs = resolve(config, code), {}
    for label, run in compared.items():
        with within(f"compare.{label}"):
            runs[label] = resolve(run, code)
            check_pass(run)
    return Experiment(whole, runs)


@contextlib.contextmanager
def within(where: str) -> Iterator[None]:
    """A ValueError inside names the variant or the cell that it is about, such as ``compare.A``; empty for nothing."""
    try:
        yield
    except ValueError as error:
        if not where:
            raise
        raise ValueError(f"{where}: {error}") from error


def load(source: Source, overrides: Iterable[str | Mapping[str, Any]] = ()) -> Config:
    """Reads a configuration and applies overrides.

    Names and arguments of components are checked by :func:`fedjax_drag.experiment.build.resolve.resolve`.

    Args:
      source: path of a YAML file or name of a configuration of the package, such as ``quickstart``; a mapping; or a
        :class:`~fedjax_drag.experiment.config.config.Config`. A mapping may
        have Python objects in the place of names (:mod:`fedjax_drag.experiment.config.own`); data that are split among
        clients already need no partition.
      overrides: ``key=value`` strings with dotted keys, applied in turn: ``rounds=50``,
        ``aggregator.c=0.5``, ``aggregator=krum``, ``aggregator.aggregator.name=krum``. One that
        names another component than the one it changes replaces it, arguments included. Or mappings of the keys to
        change.

    Returns:
      The checked configuration.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file or an override is not valid; one line naming the key, its value and what is allowed.
    """
    return merged_and_checked(read(source), parse(overrides))


def merged_and_checked(mapping: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> Config:
    """The configuration of what :func:`read` and :func:`~fedjax_drag.experiment.config.yaml_text.parse` return.

    Raises:
      ValueError: as for :func:`load`.
    """
    if any("axes" in part for part in (mapping, *changes)):
        raise ValueError("axes: belong to a sweep, not to a run; give this configuration to 'fedjax-drag sweep'")
    check_kind(mapping)
    return check(merged(mapping, changes))


def check_kind(mapping: Mapping[str, Any]) -> None:
    """Refuses the configuration of an arena, which holds that of its runs under ``base``."""
    if {"base", "attacks"} <= mapping.keys():
        raise ValueError("base, attacks: belong to an arena; give this configuration to 'fedjax-drag arena run'")


def read(source: Source) -> dict[str, Any]:
    """The keys and values of a configuration, not yet checked.

    Args and exceptions are those of :func:`load`.
    """
    if isinstance(source, Config):
        return source.to_mapping()
    if not isinstance(source, Mapping | str | os.PathLike):
        raise ValueError(f"config={shown(source)}: must be the path of a YAML file, or a mapping of its keys")
    if not isinstance(source, Mapping):
        return with_own_names(read_file(find(source)))
    data = source.get("data")
    data = data.get("name") if isinstance(data, Mapping) else data
    as_given = {} if getattr(data, "rows", None) is None else {"partition": OwnName("as_given", _as_given)}
    return as_given | with_own_names(source)


def _as_given(fed: Any) -> Any:
    """The partition of data that were given split among clients."""
    return fed


def variants(config: Config) -> dict[str, Config]:
    """The runs of a comparison by label: a configuration with each variant's changes.

    Args:
      config: with ``compare``, or without.

    Returns:
      Single-run configurations named by their label, in the order written; empty without ``compare``.

    Raises:
      ValueError: a variant is not a mapping, has a wrong key or value, or compares again; or two labels would share a
        folder.
    """
    result: dict[str, Config] = {}
    check_labels("compare", config.compare or ())
    base = config.to_mapping() if config.compare else {}
    for label, changes in (config.compare or {}).items():
        where = f"compare.{label}"
        changes = {} if changes is None else changes
        if not isinstance(changes, Mapping):
            raise ValueError(f"{where}={changes!r}: must be a mapping of the keys that it changes")
        if "compare" in changes or "name" in changes:
            raise ValueError(f"{where}: must not contain 'compare' or 'name'")
        with within(where):
            result[label] = check(merged(base | {"name": label, "compare": None}, [changes]))
    return result


def warn_of_fallbacks(*written: Mapping[str, Any], axes: Iterable[str] = (), stacklevel: int = 2) -> None:
    """Warns, in one line, of data or a partition that nobody chose.

    Args:
      *written: a configuration as read, and its overrides.
      axes: dotted keys of a sweep's axes.
      stacklevel: of the caller to whom the warning points.
    """
    changes = [part["compare"] for part in written if isinstance(part.get("compare"), Mapping)]
    variants = [change for compared in changes for change in compared.values() if isinstance(change, Mapping)]
    chosen = {key for part in (*written, *variants) for key in part} | {axis.partition(".")[0] for axis in axes}
    if missing := [key for key in CHOSEN if key not in chosen]:
        keys, taken = " and ".join(missing), ", ".join(f"{key}={_described(DEFAULTS[key])}" for key in missing)
        warnings.warn(f"{keys} not given: takes {taken}; set {keys} to choose", stacklevel=stacklevel)


def _described(component: Mapping[str, Any]) -> str:
    """``dirichlet(beta=0.1)``."""
    arguments = ", ".join(f"{key}={value}" for key, value in component.items() if key != "name")
    return f"{component['name']}({arguments})" if arguments else str(component["name"])
