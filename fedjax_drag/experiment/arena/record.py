"""What an arena has found, as plain values: the rows of its entries."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.checks import shown
from fedjax_drag.experiment.arena.scores import Score, score
from fedjax_drag.experiment.config.own import is_own, texts

SHIPPED = Path(__file__).parent / "standings"
"""Standings that come with the package, as ``NAME.json``."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What an entry has shown; all of it plain values.

    Attributes:
      label: of the entry.
      method: keys of a run's configuration.
      settings: values among which it was tuned.
      needs: what it must know, in words.
      choices: for each task its values, the setting chosen, the attackers' strengths and the validation accuracy.
      accuracy: on the test examples, by task, opponent and seed.
      failures: messages of runs that failed.
      seconds: that its runs took.
      key: equal for rows whose runs are the same.
      passes: what the server's side of the method moves in a round, in multiples of the deltas; None if unknown.
      played: the day, as ``2026-11-25``; empty in the files of older versions.
      package: the version of this package that played it; empty in the files of older versions.
      doubts: test runs whose accuracy is no result of learning, a line for each opponent; empty in the files of older
        versions.
    """

    label: str
    method: dict[str, Any]
    settings: dict[str, list[Any]]
    needs: list[str]
    choices: list[dict[str, Any]]
    accuracy: list[list[list[float]]]
    failures: list[str]
    seconds: float
    key: str
    passes: float | None = None
    played: str = ""
    package: str = ""
    doubts: list[str] = dataclasses.field(default_factory=list)

    @property
    def knowledge(self) -> str:
        """What it must know, as one text."""
        return ", ".join(self.needs) or "nothing"

    @property
    def is_own(self) -> bool:
        """Whether it is of a user's own parts: Python objects, or code that a configuration refers to."""
        return any(is_own(name) for name in texts(self.method))


@dataclasses.dataclass(frozen=True)
class PlayedRows:
    """Rows of entries that have played by the same protocol.

    Attributes:
      name: of the arena.
      version: of its protocol.
      tasks: a name for each.
      opponents: labels, that of the federation without an attack first.
      seeds: of the test runs.
      rows: by label.
      protocol: as :func:`~fedjax_drag.experiment.arena.protocol.load_arena` reads it, without the entries; None in the
        files of older versions.
    """

    name: str
    version: int
    tasks: list[str]
    opponents: list[str]
    seeds: list[int]
    rows: dict[str, Row]
    protocol: dict[str, Any] | None = None

    def scores(self, among: Iterable[str] | None = None) -> dict[str, Score]:
        """The figures of the entries, the best first.

        Args:
          among: labels of the entries that are compared; default all.
        """
        labels = self.rows if among is None else among
        return score({label: np.asarray(self.rows[label].accuracy) for label in labels})


def fields_of(mapping: Any) -> dict[str, Any]:
    """The fields of a record from the plain values that a file has.

    Raises:
      ValueError: the first of them that is not what a record holds.
    """
    fields = _typed("", mapping, PlayedRows)
    for label, row in fields["rows"].items():
        sizes = len(fields["tasks"]), len(fields["opponents"]), len(fields["seeds"])
        where = f"rows.{label}"
        if row.label != label:
            raise ValueError(f"{where}.label={row.label!r}: must be {label!r}")
        shape = np.shape(np.array(row.accuracy, object))
        if shape != sizes or 0 in sizes or sizes[1] < 2:
            raise ValueError(
                f"{where}.accuracy: has shape {shape}; must be tasks, opponents (two or more), seeds {sizes}"
            )
        outside = [value for value in np.ravel(row.accuracy).tolist() if not 0.0 <= value <= 1.0]
        if outside:
            raise ValueError(f"{where}.accuracy={outside[0]!r}: must be in [0, 1]")
        needed = {"task": dict, "setting": dict, "strengths": dict}
        if len(row.choices) != sizes[0] or not all(
            isinstance(choice.get(key), kind) for choice in row.choices for key, kind in needed.items()
        ):
            raise ValueError(f"{where}.choices: must be one mapping a task, with {', '.join(needed)}")
    known = ("base", "tasks", "attacks", "tuning_seeds", "seeds", "most_settings")
    missing = [key for key in known if fields["protocol"] is not None and key not in fields["protocol"]]
    if missing:
        raise ValueError(f"protocol: has no {missing[0]}")
    return fields


def _typed(where: str, value: Any, hint: Any) -> Any:
    """A plain value of a type that the fields here have; mappings that are to be a class as its fields, or as a row."""
    kind, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Any or (kind is types.UnionType and value is None):
        return value
    if kind is types.UnionType:
        return _typed(where, value, inside[0])
    if dataclasses.is_dataclass(kind):
        given = _typed(where, value, dict[str, Any])
        fields = {field.name: field for field in dataclasses.fields(kind)}
        wrong = [key for key in given if key not in fields]
        wrong += [key for key, x in fields.items() if key not in given and _is_required(x)]
        if wrong:
            raise ValueError(f"{where or 'the file'}: {wrong[0]!r} is unknown or missing")
        made = {key: _typed(f"{where}.{key}".strip("."), x, fields[key].type) for key, x in given.items()}
        return Row(**made) if kind is Row else {"protocol": None} | made
    kinds: Any = (int, float) if kind is float else kind
    if type(value) is bool or not isinstance(value, kinds) or (kind is float and not math.isfinite(value)):
        raise ValueError(f"{where or 'the file'}={shown(value)}: must be {_PHRASES[kind]}")
    if isinstance(value, list):
        return [_typed(where, entry, *inside) for entry in value]
    if isinstance(value, dict):
        return {key: _typed(f"{where}.{key}", entry, inside[1]) for key, entry in value.items()}
    return value


def _is_required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


_PHRASES = {dict: "a mapping", list: "a list", str: "a text", int: "an integer", float: "a finite number"}
