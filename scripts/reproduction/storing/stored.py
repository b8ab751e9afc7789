"""Stored results: the cells of a target in one small file, from which its claims are judged anywhere.

``measured/NAME.parquet`` has a row a cell: its axes, status and message, the commit, versions and device that ran it,
and lists of its metrics over the evaluations. The settings that all cells share are in the metadata of its schema.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fedjax_drag.experiment.sweep.grid import METHOD
from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction.judging.outcome import Outcome, for_judging
from reproduction.storing import settings
from reproduction.storing.settings import Settings

FOLDER = "measured"
_METADATA = b"reproduction"
_LEVEL = 19
"""Of zstd."""


class Origin(NamedTuple):
    """What ran a cell; empty where that was not recorded.

    Attributes:
      commit: of this project.
      jax: version.
      fedjax_drag: version.
      device: JAX's name of its kind.
    """

    commit: str = ""
    jax: str = ""
    fedjax_drag: str = ""
    device: str = ""


@dataclasses.dataclass(frozen=True)
class Stored:
    """The stored results of a target.

    Attributes:
      cells: that ran to the end.
      origins: of each cell.
      settings: what all of them were run under.
      times: by method, milliseconds of its clients in each turn.
    """

    cells: tuple[Cell, ...]
    origins: tuple[Origin, ...]
    settings: Settings
    times: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)

    def outcome(self, wanted: Mapping[str, Sequence[Any]] | None = None) -> Outcome:
        """The cells as claims are judged by them; ``wanted`` has the values of the axes of the whole sweep."""
        return for_judging(self.cells, self.times, wanted)


def path_of(folder: Path, name: str) -> Path:
    """Where a folder of verdicts has the stored results of a target."""
    return folder / FOLDER / f"{name}.parquet"


def merged(earlier: Stored, later: Stored, name: str) -> Stored:
    """The cells of both; of a cell that both have, that of ``later``.

    Times are those of one measurement, in which the methods took turns: of ``later`` if that has all methods.

    Raises:
      ValueError: they were run under other settings, or over other axes.
    """
    axes = list(dict.fromkeys(tuple(sorted(cell.values)) for cell in (*earlier.cells, *later.cells)))
    if len(axes) > 1:
        own, there = (", ".join(names) for names in (axes[-1], axes[0]))
        raise ValueError(
            f"{name}: results over {own} cannot join others, over {there}; remove {FOLDER}/{name}.parquet to start anew"
        )
    others = settings.differences(later.settings, earlier.settings)
    if others:
        was = settings.differences(earlier.settings, later.settings)
        remedy = f"the stored ones have {', '.join(was)}; remove {FOLDER}/{name}.parquet to start anew"
        raise ValueError(f"{name}: results with {', '.join(others)} cannot join others: {remedy}")
    rows = {key(cell.values): (cell, origin) for cell, origin in zip(earlier.cells, earlier.origins, strict=True)}
    rows |= {key(cell.values): (cell, origin) for cell, origin in zip(later.cells, later.origins, strict=True)}
    cells, origins = zip(*rows.values(), strict=True)
    times = later.times if earlier.times.keys() <= later.times.keys() else earlier.times
    return Stored(cells, origins, earlier.settings | later.settings, times)


def completed(own: Stored, other: Stored) -> Stored:
    """Another reading with the cells of the methods that it did not run, whose settings it does not change.

    Args:
      own: the reading.
      other: the paper's; nothing is taken from it if it ran at another scale.
    """
    if own.settings[settings.COMMON] != other.settings[settings.COMMON]:
        return own
    ran = {cell.values[METHOD] for cell in own.cells}
    kept = [index for index, cell in enumerate(other.cells) if cell.values[METHOD] not in ran]
    cells = (*own.cells, *(other.cells[index] for index in kept))
    origins = (*own.origins, *(other.origins[index] for index in kept))
    return Stored(cells, origins, other.settings | own.settings, own.times or other.times)


def key(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What identifies a cell: the values of its axes, in whatever order."""
    return tuple(sorted(values.items()))


def _place(values: Mapping[str, Any]) -> list[tuple[str, tuple[int, float, str]]]:
    """By which the cells of a file are sorted: the values of their axes, numbers by size and before all others."""
    return [(axis, (0, x, "") if isinstance(x, int | float) else (1, 0.0, str(x))) for axis, x in key(values)]


def write(path: Path, stored: Stored) -> None:
    """Writes stored results; a reader sees the old file or the new one."""
    ordered = sorted(zip(stored.cells, stored.origins, strict=True), key=lambda row: _place(row[0].values))
    cells, origins = [cell for cell, _ in ordered], [origin for _, origin in ordered]
    columns: dict[str, pa.Array] = {axis: pa.array([cell.values[axis] for cell in cells]) for axis in cells[0].values}
    columns["status"] = pa.array([cell.status for cell in cells])
    columns["message"] = pa.array([cell.message for cell in cells])
    for field in Origin._fields:
        columns[field] = pa.array([getattr(origin, field) for origin in origins])
    for name in dict.fromkeys(name for cell in cells for name in cell.history):
        kind = pa.int32() if name == "round" else pa.float32()
        lists = [cell.history.get(name) for cell in cells]
        columns[name] = pa.array(lists, pa.list_(kind))
    about = {"settings": stored.settings, "times": stored.times}
    table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(about, sort_keys=True).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    parquet.write_table(table, partial, compression="zstd", compression_level=_LEVEL)
    partial.replace(path)


def read(path: Path) -> Stored | None:
    """Reads stored results; None if there is no file.

    Raises:
      ValueError: it is not a file that :func:`write` wrote.
    """
    if not path.is_file():
        return None
    try:
        table = parquet.read_table(path)
        about = json.loads(table.schema.metadata[_METADATA])
        rows = table.to_pylist()
        axes = table.column_names[: table.column_names.index("status")]
        known = [field for field in Origin._fields if field in table.column_names]  # devices were not stored at first
        metrics = table.column_names[len(axes) + len(("status", "message", *known)) :]
        cells = tuple(_cell(row, axes, metrics) for row in rows)
        origins = tuple(Origin(**{field: row[field] for field in known}) for row in rows)
        return Stored(cells, origins, about["settings"], about["times"])
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r}: must be results that this script stored") from error


def _cell(row: Mapping[str, Any], axes: Sequence[str], metrics: Sequence[str]) -> Cell:
    history = {name: np.asarray(row[name], np.float64) for name in metrics if row[name] is not None}
    return Cell({axis: row[axis] for axis in axes}, row["status"], row["message"], history)
