"""The results of a sweep: a table with a row for every evaluation, and a matrix of final accuracies."""

import csv
import dataclasses
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.run.metric_kinds import title
from fedjax_drag.experiment.run.metrics_file import History
from fedjax_drag.experiment.sweep.grid import Grid, describe
from fedjax_drag.files import replaced
from fedjax_drag.simulation.result import TEST, VALIDATION, choice_metric

Table = dict[str, np.ndarray]
"""Columns by name, each with one entry per row."""

FIGURES = (
    "round",
    TEST,
    "test_loss",
    VALIDATION,
    "validation_loss",
    "train_loss",
    "attack_success_rate",
    "cosine_to_benign",
    "malicious_weight",
    "detection_tpr",
    "detection_fpr",
)
"""Figures that come first in a table, where there are any; whatever else a history has of each round follows."""


COMPLETE = ("done", "diverged")
"""Statuses of cells that have a final accuracy."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """The result of one cell of a sweep.

    Attributes:
      values: by axis, its number or the label of its value.
      status: ``"done"``, ``"diverged"`` (the parameters, or the loss at the end, are not finite), ``"failed"`` or
        ``"interrupted"``.
      message: what went wrong, or empty.
      history: the run's history; empty if the cell failed.
    """

    values: dict[str, Any]
    status: str
    message: str
    history: History


class Matrix(NamedTuple):
    """Final accuracies over the seeds of a sweep, the row with the best worst case first.

    Attributes:
      metric: which accuracy: ``validation_accuracy`` where all cells have it, else ``test_accuracy``.
      axis: the axis that the rows are values of.
      rows: their labels, R.
      columns: combinations of the values of the other axes but the seed, C.
      num_seeds: cells behind each entry.
      mean: over the seeds that have finished, ``[R, C]``; NaN where none has.
      failed: ``[R, C]`` bool: cells have failed and none has finished.
      texts: ``[R][C]`` the entries in percent, for people.
      worst: the minimum over the columns, ``[R]``; NaN where a column has no figure.
      worst_on_test: the same of the test accuracy, ``[R]``; the order is not by it.
    """

    metric: str
    axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    num_seeds: int
    mean: np.ndarray
    failed: np.ndarray
    texts: tuple[tuple[str, ...], ...]
    worst: np.ndarray
    worst_on_test: np.ndarray


def table(grid: Grid, cells: Sequence[Cell]) -> Table:
    """One row for every cell and evaluation; a cell without any has one row.

    Args:
      grid: the sweep.
      cells: those that have run.

    Returns:
      A column for each axis (numbers, or labels), ``status``, ``message`` and, as float64 with NaN where there is
      none, each figure that the histories have one of per evaluation; as ``history.NAME`` where ``NAME`` is an axis,
      as ``local_steps`` may be.
    """
    histories = [{name: x for name, x in cell.history.items() if np.ndim(x) == 1} for cell in cells]
    lengths = [len(history.get("round", "-")) for history in histories]
    present = dict.fromkeys(name for history in histories for name in history)
    figures = [name for name in FIGURES if name in present] + [name for name in present if name not in FIGURES]
    columns: Table = {axis: np.repeat([cell.values[axis] for cell in cells], lengths) for axis in grid.axes}
    columns["status"] = np.repeat([cell.status for cell in cells], lengths)
    columns["message"] = np.repeat([cell.message for cell in cells], lengths)
    taken = frozenset(columns)
    for name in figures or FIGURES[:2]:
        parts = [
            _numbers(history[name]) if name in history else np.full(length, np.nan)
            for history, length in zip(histories, lengths, strict=True)
        ]
        columns[f"history.{name}" if name in taken else name] = np.concatenate(parts) if parts else np.zeros(0)
    return columns


def to_csv(columns: Table) -> str:
    """A table as comma-separated values, NaN as nothing."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*([_plain(entry) for entry in column.tolist()] for column in columns.values()), strict=True))
    return stream.getvalue()


def write_parquet(path: Path, columns: Table) -> None:
    """Writes a table as a Parquet file, NaN as null; a reader sees the old file or the new one."""
    import pyarrow  # imported here: slow, and only sweeps need it
    from pyarrow import parquet

    arrays = {name: pyarrow.array(column, from_pandas=True) for name, column in columns.items()}
    with replaced(path) as stream:
        parquet.write_table(pyarrow.table(arrays), stream)


def matrix(grid: Grid, cells: Sequence[Cell]) -> Matrix:
    """Final accuracies by the first axis that is an aggregator or an algorithm, else by the first axis.

    Args:
      grid: the sweep.
      cells: those that have run.
    """
    places = dict.fromkeys(place(grid, point.values) for point in grid.points)
    rows, columns = (tuple(dict.fromkeys(key[side] for key in places)) for side in (0, 1))
    groups: dict[tuple[str, str], list[Cell]] = {key: [] for key in itertools.product(rows, columns)}
    for cell in cells:
        groups[place(grid, cell.values)].append(cell)
    num_seeds, metric = len(grid.points) // len(places), metric_of(cells)
    mean, on_test = (
        np.array([[mean_final(groups[row, column], name) for column in columns] for row in rows])
        for name in (metric, TEST)
    )
    failed = np.array([[_any(groups[row, column], "failed") for column in columns] for row in rows])
    texts = [tuple(_text(groups[row, column], metric, num_seeds) for column in columns) for row in rows]
    worst = mean.min(axis=1)  # NaN if an entry is: a row with a missing entry has no worst case
    order = np.argsort(-worst, kind="stable")
    return Matrix(
        metric,
        compared(grid),
        tuple(rows[i] for i in order),
        tuple(column or title(metric) for column in columns),
        num_seeds,
        mean[order],
        (failed & np.isnan(mean))[order],
        tuple(texts[i] for i in order),
        worst[order],
        on_test.min(axis=1)[order],
    )


def compared(grid: Grid) -> str:
    """The axis that the rows of a matrix are values of."""
    proper = _proper(grid)
    return next((axis for axis in proper if axis in ("aggregator", "algorithm")), proper[0])


def place(grid: Grid, values: Mapping[str, Any]) -> tuple[str, str]:
    """Row and column of a matrix in which a cell with these values stands."""
    by = compared(grid)
    others = {axis: values[axis] for axis in _proper(grid) if axis != by}
    return str(values[by]), describe(others)


def percent(accuracy: float) -> str:
    """An accuracy in percent with one decimal; a dash if there is none."""
    return f"{100 * accuracy:.1f}" if np.isfinite(accuracy) else "-"


def _proper(grid: Grid) -> list[str]:
    """The axes but the seed, unless there is no other."""
    return [axis for axis in grid.axes if axis != "seed"] or ["seed"]


def metric_of(cells: Sequence[Cell]) -> str:
    """The accuracy by which cells are compared."""
    return choice_metric(*(cell.history for cell in cells if cell.status in COMPLETE))


def mean_final(cells: Sequence[Cell], metric: str) -> float:
    """An accuracy at the end of the cells that got there, its mean over them; NaN if none has.

    The sum is exact before it is rounded, so that equal accuracies in another order are a tie.
    """
    finals = _finals(cells, metric)
    return math.fsum(finals) / finals.size if finals.size else np.nan


def _finals(cells: Sequence[Cell], metric: str) -> np.ndarray:
    """As files hold them, so that a sweep chooses the same before and after it was resumed."""
    finals = [cell.history[metric][-1:] for cell in cells if cell.status in COMPLETE]
    return _numbers(np.concatenate(finals)) if finals else np.zeros(0)


def _any(cells: Sequence[Cell], status: str) -> bool:
    return any(cell.status == status for cell in cells)


def _text(cells: Sequence[Cell], metric: str, num_seeds: int) -> str:
    finals = _finals(cells, metric)
    if not finals.size:
        return "failed" if _any(cells, "failed") else "-"
    spread = f" \N{PLUS-MINUS SIGN} {100 * finals.std(ddof=1):.1f}" if finals.size > 1 else ""
    mark = "*" if _any(cells, "diverged") else ""
    missing = f" ({finals.size} of {num_seeds})" if finals.size < num_seeds else ""
    return percent(finals.mean()) + spread + mark + missing


def _numbers(column: Any) -> np.ndarray:
    """A history's column as it reads back from a file, so that a table is the same after a resume."""
    column = np.asarray(column)
    column = column.astype(str).astype(np.float64) if column.dtype == np.float32 else column.astype(np.float64)
    return np.where(np.isfinite(column), column, np.nan)


def _plain(entry: Any) -> Any:
    """An entry of a CSV file: counts without a decimal point, NaN as nothing."""
    if not isinstance(entry, float):
        return entry
    return "" if np.isnan(entry) else int(entry) if entry.is_integer() else entry
