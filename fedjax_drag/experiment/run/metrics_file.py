"""``metrics.jsonl``: one line for each evaluation, appended after it and read back line by line.

The file is not trusted and may be damaged: every line is checked by itself, and one that cannot be read does not
affect the others. Each checkpoint holds a copy of the lines up to its round; a resumed run restores the file from it.
"""

import bisect
import codecs
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.files import read_bytes, replaced

METRICS = "metrics.jsonl"
DAMAGED = "metrics.damaged.jsonl"
"""Where lines that cannot be read are set aside, beside ``metrics.jsonl``."""

_DTYPES = ("bool", "int32", "int64", "uint32", "float16", "float32", "float64")
"""Those of the columns of a history."""

History = dict[str, np.ndarray]
"""Recorded quantities by name, each with one entry per evaluation."""


class Damage(NamedTuple):
    """A line that cannot be read.

    Attributes:
      number: of the line, from 1.
      reason: what is wrong with it.
      line: its bytes, without the end of the line.
    """

    number: int
    reason: str
    line: bytes

    def __str__(self) -> str:
        return f"line {self.number} ({self.reason})"


class Metrics(NamedTuple):
    """The contents of a file.

    Attributes:
      history: arrays by name, leading axis evaluations, None read as NaN; empty if there is no evaluation.
      rows: the lines that the history was read from.
      damage: the lines that cannot be read.
    """

    history: History
    rows: "tuple[Row, ...]"
    damage: tuple[Damage, ...]


class Row(NamedTuple):
    """A line that can be read.

    Attributes:
      number: of the line, from 1.
      line: its bytes, without the end of the line.
      values: its entries.
    """

    number: int
    line: bytes
    values: dict[str, np.ndarray]

    @property
    def round(self) -> int:
        """The evaluated round."""
        return int(self.values["round"])

    @property
    def structure(self) -> tuple[Any, ...]:
        """Names and shapes of the entries."""
        return tuple((name, value.shape) for name, value in sorted(self.values.items()))


def line_of(metrics: Mapping[str, Any]) -> bytes:
    """An evaluation as a line, with its end."""
    return json.dumps(plain(metrics), allow_nan=False).encode() + b"\n"


def read(path: Path) -> Metrics:
    """Reads ``metrics.jsonl``; without a file there is no evaluation.

    Raises:
      ValueError: it is no file, or cannot be read.
    """
    try:
        return parse(read_bytes(path))
    except FileNotFoundError:
        return parse(b"")


def parse(content: bytes) -> Metrics:
    """Reads lines of ``metrics.jsonl``.

    A last line without a line end is ignored if it cannot be read: a run is writing it, or was stopped there. Where
    lines contradict each other, because their rounds do not increase or their entries differ, the majority is kept.
    """
    rows: list[Row] = []
    damage: list[Damage] = []
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(Row(number, line.rstrip(b"\r"), _values(line)))
        except (ValueError, OverflowError, RecursionError) as error:
            if number < len(lines):
                reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                damage.append(Damage(number, reason, line))
    rows, unlike = _alike(rows)
    rows, unordered = _rising(rows)
    damage += [Damage(row.number, "its entries differ from those of the other lines", row.line) for row in unlike]
    damage += [Damage(row.number, f"out of order: round {row.round}", row.line) for row in unordered]
    history = {name: np.stack([row.values[name] for row in rows]) for name in rows[0].values} if rows else {}
    return Metrics(history, tuple(rows), tuple(sorted(damage)))


def restore(folder: Path, copy: bytes) -> str:
    """Restores ``metrics.jsonl`` from the copy in a checkpoint; rounds of later lines are computed again.

    Lines that cannot be read, and lines that are not those of the copy, are set aside in ``metrics.damaged.jsonl``.

    Args:
      folder: the results folder.
      copy: the lines up to the checkpoint.

    Returns:
      A message about the damage; empty if there was none.
    """
    path = folder / METRICS
    content = path.read_bytes() if path.exists() else b""
    if content == copy:
        return ""
    known, wanted, present = set(copy.split(b"\n")), parse(copy), parse(content)
    end = wanted.rows[-1].round if wanted.rows else 0
    other = [Damage(row.number, "is not what the checkpoint has", row.line) for row in present.rows if row.round <= end]
    aside = [damage for damage in sorted([*present.damage, *other]) if damage.line not in known]
    if aside:
        before = (folder / DAMAGED).read_bytes() if (folder / DAMAGED).exists() else b""
        with replaced(folder / DAMAGED) as stream:
            stream.writelines([before, *(damage.line + b"\n" for damage in aside)])
    with replaced(path) as stream:
        stream.write(copy)
    intact = content.startswith(copy)
    notes = [f"{listed(aside)} set aside in {DAMAGED}"] if aside else []
    notes += [] if intact else [f"restored from the checkpoint of round {end}"]
    return f"{str(path)!r}: {', '.join(notes)}" if notes else ""


def listed(damage: Sequence[Damage]) -> str:
    """The first damaged lines, and how many more there are."""
    more = f" and {len(damage) - 3} more" if len(damage) > 3 else ""
    return ", ".join(map(str, damage[:3])) + more


def plain(value: Any) -> Any:
    """``value`` for JSON: arrays as lists, floats in the shortest form that reads back equal, NaN as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    array = np.asarray(value)
    if array.dtype == bool:
        array = array.astype(np.int32)  # metrics are numbers only
    if array.ndim:
        return [plain(entry) for entry in array]
    if not np.issubdtype(array.dtype, np.inexact):
        return array.item()
    number = float(str(array.astype(np.float32) if array.dtype.itemsize < 4 else array))
    return number if math.isfinite(number) else None


def typed(history: History, dtypes: Any) -> History:
    """A history that was read, with the dtypes that it had; a file alone does not tell floats of 32 from 64 bits.

    Args:
      history: from :func:`read`.
      dtypes: names of them, by column; what is something else, or does not fit the values, is left out.
    """
    wanted = dtypes if isinstance(dtypes, dict) else {}

    def cast(column: np.ndarray, dtype: Any) -> np.ndarray:
        fits = dtype in _DTYPES and (np.issubdtype(dtype, np.floating) or np.isfinite(column).all())
        with np.errstate(all="ignore"):
            return column.astype(dtype) if fits else column

    return {name: cast(column, wanted.get(name)) for name, column in history.items()}


def join(earlier: History, later: Mapping[str, Any]) -> History:
    """The history of a run and of its continuation, with the continuation's types."""
    return {
        key: np.concatenate([np.asarray(earlier[key], np.asarray(value).dtype), np.asarray(value)])
        for key, value in later.items()
        if key in earlier
    }


def _alike(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows with the most common structure, of equally common ones the first, and the others."""
    if not rows:
        return [], []
    common = Counter(row.structure for row in rows).most_common(1)[0][0]
    return [row for row in rows if row.structure == common], [row for row in rows if row.structure != common]


def _rising(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The longest sequence of rows whose rounds increase, and the other rows."""
    rounds = [row.round for row in rows]
    ends: list[int] = []  # of sequences of 1, 2, ... rows: the lowest round that one ends with,
    last: list[int] = []  # and the row that it ends with
    before: list[int | None] = []
    for place, round_number in enumerate(rounds):
        length = bisect.bisect_left(ends, round_number)
        before.append(last[length - 1] if length else None)
        if length == len(ends) or round_number < ends[length]:  # of equal rounds, the first
            ends[length : length + 1], last[length : length + 1] = [round_number], [place]
    chosen: set[int] = set()
    place = last[-1] if last else None
    while place is not None:
        chosen.add(place)
        place = before[place]
    return [row for i, row in enumerate(rows) if i in chosen], [row for i, row in enumerate(rows) if i not in chosen]


def _values(line: bytes) -> dict[str, np.ndarray]:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if not isinstance(row, dict):
        raise ValueError("must be a JSON object")
    for key in ("round", "test_accuracy"):
        if key not in row:
            raise ValueError(f"has no {key!r}")
    return {key: _numbers(key, value) for key, value in row.items()}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _numbers(key: str, value: Any) -> np.ndarray:
    if key == "round" and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31):
        raise ValueError(f"round={value!r:.40}: must be a round number")
    if not all(_is_number(entry) for entry in _leaves(value)):
        raise ValueError(f"{key!r} must be a number or a list of numbers")
    return np.asarray(value) if key == "round" else np.asarray(value, np.float64)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _leaves(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        return [value]
    return (leaf for entry in value for leaf in _leaves(entry))
