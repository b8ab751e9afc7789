"""What an arena compares: tasks, attacks and backdoors whose strengths are tuned, entries whose settings are, seeds."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_drag import checks
from fedjax_drag.experiment.build.experiment import read
from fedjax_drag.experiment.config.config import check_labels, check_name
from fedjax_drag.experiment.config.own import as_text
from fedjax_drag.experiment.sweep.grid import lists

HONEST = "none"
"""The opponent that does not attack; it is always there."""

ALWAYS = ("fedavg", "root_only")
"""Entries that are always there: the rule that defends nothing, and the root data alone."""

_KEYS = (
    *("name", "version", "base", "tasks", "attacks", "backdoors", "entries"),
    *("tuning_seeds", "seeds", "most_settings"),
)
METHOD_KEYS = ("aggregator", "algorithm", "client")
DEFAULT_SEEDS = {"tuning_seeds": (100,), "seeds": (0, 1, 2)}

_ELSEWHERE = {"attack": "attacks", "compare": "entries", "axes": "tasks", **dict.fromkeys(METHOD_KEYS, "entries")}
"""Keys of a run or a sweep that would be in the way of others, and where the arena has what they say."""


@dataclasses.dataclass(frozen=True)
class Opponent:
    """An attack and the strengths among which the attacker chooses against each entry.

    Attributes:
      label: its name in tables.
      attack: as in a run's configuration; None for no attack.
      strengths: values by dotted key, such as ``attack.z``; empty for an attack without a strength.
    """

    label: str
    attack: Any
    strengths: dict[str, list[Any]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A defence and the settings among which its user chooses.

    Attributes:
      label: its name in tables.
      method: the keys of a run's configuration that it sets, of ``aggregator``, ``algorithm`` and ``client``.
      settings: values by dotted key, such as ``aggregator.c``; empty for a defence without a setting.
    """

    label: str
    method: dict[str, Any]
    settings: dict[str, list[Any]]


@dataclasses.dataclass(frozen=True)
class Arena:
    """A checked protocol.

    Attributes:
      name: of the results.
      version: of the protocol; another one cannot be compared.
      base: configuration of a run, what all tasks share.
      tasks: values by dotted key; each combination is a task.
      opponents: the attacks, :data:`HONEST` first.
      entries: the defences, those of :data:`ALWAYS` first.
      tuning_seeds: of the runs by whose validation accuracy, or what else ``metric`` of the base says, settings and
        strengths are chosen.
      seeds: of the runs whose test figures count, none of them one of ``tuning_seeds``.
      most_settings: how many settings an entry may have.
      backdoors: attacks with a goal, each ``during`` some rounds before the last; they have no part in the places.
    """

    name: str
    version: int
    base: dict[str, Any]
    tasks: dict[str, list[Any]]
    opponents: tuple[Opponent, ...]
    entries: tuple[Entry, ...]
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    most_settings: int
    backdoors: tuple[Opponent, ...] = ()

    def only(self, labels: Iterable[str]) -> "Arena":
        """The same with these entries alone.

        Raises:
          ValueError: there is no such entry.
        """
        known = {entry.label: entry for entry in self.entries}
        wanted = checks.names("entry", labels, known)
        return dataclasses.replace(self, entries=tuple(known[label] for label in wanted))

    def protocol(self) -> dict[str, Any]:
        """All but the entries as plain values, as :func:`load_arena` reads them."""
        plain = {key: getattr(self, key) for key in _KEYS if key not in ("attacks", "backdoors", "entries")}
        for kind, those in (("attacks", self.opponents[1:]), ("backdoors", self.backdoors)):
            if those:
                plain[kind] = {one.label: {"attack": one.attack, "strengths": one.strengths} for one in those}
        return as_text(plain)


def load_arena(source: str | Path | Mapping[str, Any]) -> Arena:
    """Reads a protocol; the configurations of its runs are checked where they are planned.

    Args:
      source: path of a YAML file, or a mapping of its keys. Of ``attacks`` and ``entries`` the values may be left out:
        the label is then the name of the attack, or of the aggregation rule.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: one line naming the key, its value and what is allowed.
    """
    mapping = read(source)
    for key in mapping:
        if key not in _KEYS:
            raise ValueError(f"{key}: is no key of an arena; must be one of {', '.join(_KEYS)}")
    for key in ("base", "attacks", *{"backdoors"} & mapping.keys()):
        if not isinstance(mapping.get(key), Mapping) or not mapping[key]:
            raise ValueError(f"{key}={mapping.get(key)!r}: must be a mapping with at least one entry")
    base = dict(mapping["base"])
    data = base.get("data")
    if not isinstance(data, Mapping) or not data.get("validation_fraction"):
        raise ValueError("base.data.validation_fraction: must be set; settings are chosen on validation examples")
    tasks = _axes("tasks", mapping.get("tasks"))
    misplaced = [("base", key) for key in ("attack", "compare", "axes") if base.get(key) is not None]
    for where, key in [*misplaced, *(("tasks", key) for key in tasks if key in _ELSEWHERE)]:
        raise ValueError(f"{where}.{key}: belongs to {_ELSEWHERE[key]}")
    tuning, seeds = (_seeds(key, mapping.get(key, default)) for key, default in DEFAULT_SEEDS.items())
    if shared := set(tuning) & set(seeds):
        raise ValueError(f"seeds={list(seeds)}: {min(shared)} is one of tuning_seeds; must be fresh ones")
    most = mapping.get("most_settings", 8)
    checks.count("most_settings", most, 1)
    written = mapping.get("entries") or {}
    if not isinstance(written, Mapping):
        raise ValueError(f"entries={written!r}: must be a mapping from labels to methods and settings")
    written = dict.fromkeys(ALWAYS) | dict(written)
    entries = [entry_of(label, value, most) for label, value in written.items()]
    attacks, backdoors = (_opponents(kind, mapping.get(kind) or {}) for kind in ("attacks", "backdoors"))
    for one in backdoors:
        attack = one.attack if isinstance(one.attack, Mapping) else {}
        if attack.get("name") != "during" or not isinstance(attack.get("stop"), int) or "attack.stop" in one.strengths:
            raise ValueError(f"backdoors.{one.label}.attack={one.attack!r}: must be during with a stop, which is fixed")
    for kind, known in (("attacks", [*attacks, *backdoors]), ("entries", entries)):
        check_labels(f"{kind}:", [one.label for one in known])
    opponents = Opponent(HONEST, None, {}), *attacks
    name, version = str(mapping.get("name", "arena")), mapping.get("version", 1)
    check_name("name", name)
    checks.count("version", version)
    return Arena(name, version, base, tasks, opponents, tuple(entries), tuning, seeds, most, backdoors)


def entry_of(label: str, value: Any, most: int) -> Entry:
    """An entry as it is written, with at most so many settings.

    Raises:
      ValueError: a key or the number of settings is not allowed.
    """
    own = _keys(f"entries.{label}", value, (*METHOD_KEYS, "settings"))
    method = {key: own[key] for key in METHOD_KEYS if key in own} or {"aggregator": label}
    settings = _axes(f"entries.{label}.settings", own.get("settings"))
    number = math.prod(map(len, settings.values()))
    if number > most:
        raise ValueError(f"entries.{label}.settings: are {number}; must be at most most_settings={most}")
    return Entry(label, method, settings)


def _opponents(kind: str, written: Mapping[str, Any]) -> tuple[Opponent, ...]:
    """The attacks under a key of the protocol."""
    found = []
    for label, value in written.items():
        own = _keys(f"{kind}.{label}", value, ("attack", "strengths"))
        if label == HONEST:
            raise ValueError(f"{kind}.{label}: is the federation without an attack, which is always there")
        strengths = _axes(f"{kind}.{label}.strengths", own.get("strengths"))
        found.append(Opponent(label, own.get("attack", label), strengths))
    return tuple(found)


def _keys(key: str, written: Any, allowed: Sequence[str]) -> Mapping[str, Any]:
    """What is written of an attack or an entry, of which nothing need be."""
    written = {} if written is None else written
    if not isinstance(written, Mapping) or set(written) - set(allowed):
        raise ValueError(f"{key}={written!r}: must be a mapping with keys of {', '.join(allowed)}, or nothing")
    return written


def _axes(key: str, written: Any) -> dict[str, list[Any]]:
    axes = lists(key, written) if written else {}
    if "seed" in axes:
        raise ValueError(f"{key}.seed: belongs to tuning_seeds and seeds")
    return axes


def _seeds(key: str, values: Any) -> tuple[int, ...]:
    whole = isinstance(values, list | tuple) and all(isinstance(value, int) and value >= 0 for value in values)
    if not whole or not values or len(set(values)) < len(values):
        raise ValueError(f"{key}={values!r}: must be a list of different whole numbers, at least 0")
    return tuple(values)
