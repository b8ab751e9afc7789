"""``metrics.jsonl``: one line for each evaluation, a readable copy of the history that the checkpoints hold.

The file is not trusted: what cannot be read is left out and named. A resumed run writes it anew from its checkpoint.
"""

import codecs
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.plain import plain
from fedjax_drag.files import read_bytes, replaced
from fedjax_drag.simulation.criterion import LOSS

METRICS = "metrics.jsonl"

_DTYPES = ("bool", "int32", "int64", "uint32", "float16", "float32", "float64")
"""Those of the columns of a history."""

History = dict[str, np.ndarray]
"""Recorded quantities by name, each with one entry per evaluation."""


class Metrics(NamedTuple):
    """The contents of a file.

    Attributes:
      history: arrays by name, leading axis evaluations, None read as NaN; empty if there is no evaluation.
      damage: the numbers of those that were left out, from 1, each with what is wrong with it.
      checksum: CRC-32 of all of them.
    """

    history: History
    damage: tuple[str, ...]
    checksum: int


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

    A line is left out that cannot be read, whose round does not come after those before it, or whose entries are not
    those of the first one. A last line without a line end is ignored if it cannot be read: a run is writing it, or was
    stopped there.
    """
    rows: list[dict[str, np.ndarray]] = []
    damage: list[str] = []
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _values(line)
            if rows:
                _check_follows(rows[-1], row)
        except (ValueError, OverflowError, RecursionError) as error:
            if number < len(lines):
                reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                damage.append(f"line {number} ({reason})")
            continue
        rows.append(row)
    history = {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}
    return Metrics(history, tuple(damage), zlib.crc32(content))


def restore(folder: Path, copy: bytes) -> str:
    """Writes ``metrics.jsonl`` anew from the copy in a checkpoint; rounds of later lines are computed again.

    Args:
      folder: the results folder.
      copy: the lines up to the checkpoint.

    Returns:
      A message if the file lacked some of them; else empty.
    """
    path = folder / METRICS
    content = path.read_bytes() if path.exists() else b""
    if content != copy:
        with replaced(path) as stream:
            stream.write(copy)
    return "" if content.startswith(copy) else f"{str(path)!r}: was damaged; written anew from the checkpoint"


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
    """The history of a run and of its continuation, with the continuation's types; either may be empty."""
    if not (earlier and later):
        return {**earlier, **later}
    return {
        key: np.concatenate([np.asarray(earlier[key], np.asarray(value).dtype), np.asarray(value)])
        for key, value in later.items()
        if key in earlier
    }


def _check_follows(before: dict[str, np.ndarray], row: dict[str, np.ndarray]) -> None:
    if {name: value.shape for name, value in row.items()} != {name: value.shape for name, value in before.items()}:
        raise ValueError("its entries differ from those of the lines before")
    if row["round"] <= before["round"]:
        raise ValueError(f"out of order: round {row['round']}")


def _values(line: bytes) -> dict[str, np.ndarray]:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {getattr(error, 'msg', 'not UTF-8')}") from None
    if not isinstance(row, dict):
        raise ValueError("must be a JSON object")
    for name in ("round", LOSS.test):  # by the loss runs are judged that have nothing else in common
        if name not in row:
            raise ValueError(f"has no {name!r}")
    return {key: _numbers(key, value) for key, value in row.items()}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _numbers(key: str, value: Any) -> np.ndarray:
    if key == "round":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise ValueError(f"round={value!r:.40}: must be a round number")
        return np.asarray(value)
    try:
        array = np.asarray(value)  # of objects where there is None, which is NaN
        if array.dtype.kind in "iufO":
            return array.astype(np.float64)
    except (ValueError, TypeError):
        pass
    raise ValueError(f"{key!r} must be a number or a list of numbers")
