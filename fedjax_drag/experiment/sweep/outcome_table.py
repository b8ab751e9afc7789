"""The results of a sweep: a table with a row for every evaluation, and a matrix of final accuracies."""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.config.config import is_condition
from fedjax_drag.experiment.intervals import mean_and_spread
from fedjax_drag.experiment.plain import grouped
from fedjax_drag.experiment.run.metric_kinds import is_counted, title
from fedjax_drag.experiment.run.metrics_file import History
from fedjax_drag.experiment.sweep.grid import Grid, describe
from fedjax_drag.files import replaced
from fedjax_drag.simulation.criterion import ACCURACY, Criterion, common

Table = dict[str, np.ndarray]
"""Columns by name, each with one entry per row."""

FIGURES = (
    *("round", "test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "train_loss"),
    *("attack_success_rate", "cosine_to_benign", "malicious_weight", "detection_tpr", "detection_fpr"),
)
"""Figures that come first in a table, where there are any; whatever else a history has of each round follows."""


COMPLETE = ("done", "diverged")
"""Statuses of cells that came to their end."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """The result of one cell of a sweep.

    Attributes:
      values: by axis, its number or the label of its value.
      status: ``"done"``, ``"diverged"`` (the parameters, or the loss at the end, are not finite), ``"failed"`` or
        ``"interrupted"``.
      message: what went wrong, or empty.
      history: the run's history; empty if the cell failed.
      criterion: by what the run's rounds are chosen.
    """

    values: dict[str, Any]
    status: str
    message: str
    history: History = dataclasses.field(repr=False)
    criterion: Criterion = ACCURACY


class Matrix(NamedTuple):
    """Final accuracies over the seeds of a sweep, or final values of another criterion.

    Where some axes are conditions (:data:`~fedjax_drag.experiment.config.config.CONDITIONS`) and others are not,
    rows are combinations of the latter, the best worst case first, and columns those of the conditions. Otherwise rows
    are values of the first axis that is an aggregator or an algorithm, else of the first axis: numbers as they come,
    others with the best first; and there is no worst case.

    Attributes:
      criterion: what is compared, on the validation examples where all cells have them.
      axis: the axes that the rows are values of.
      rows: their labels, R.
      settings: their values by axis.
      columns: combinations of the values of the other axes but the seed, C.
      num_seeds: cells behind each entry.
      mean: over the seeds that have finished, ``[R, C]``; NaN where none has.
      texts: ``[R][C]`` the entries for people, shares in percent; ``failed`` where cells have failed and none has
        finished.
      worst: the worst over the columns, ``[R]``; NaN where a column has no figure; None if no axis is a condition, or
        all are.
      worst_on_test: the same on the test examples, ``[R]``; the order is not by it.
    """

    criterion: Criterion
    axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    num_seeds: int
    mean: np.ndarray
    texts: tuple[tuple[str, ...], ...]
    worst: np.ndarray | None
    worst_on_test: np.ndarray | None
    settings: tuple[dict[str, Any], ...] = ()

    @property
    def over_seeds(self) -> str:
        """What is said of entries that are means over seeds; empty for one seed."""
        seeds = f"{self.num_seeds} seeds \N{PLUS-MINUS SIGN} standard deviation"
        return f", mean over {seeds}" if self.num_seeds > 1 else ""


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


def matrix(grid: Grid, cells: Sequence[Any]) -> Matrix:
    """The final accuracies of the cells that have run, or of what else has the attributes of a :class:`Cell`."""
    sides = axes_of(grid)
    return _matrix(grid, cells, *sides, crossed=not is_condition(sides[0][0]) and any(map(is_condition, sides[1])))


def worst_cases(grid: Grid, cells: Sequence[Cell]) -> dict[str, float]:
    """By setting, a combination of the axes that are no conditions, the worst over the conditions; the best first.

    Where all axes are conditions, or none is, every combination has its own value.
    """
    found = crossed(grid, cells)
    assert found.worst is not None
    return dict(zip(found.rows, found.worst.tolist(), strict=True))


def crossed(grid: Grid, cells: Sequence[Cell]) -> Matrix:
    """The final accuracies by setting and condition, with a worst case whatever the axes are."""
    choices, conditions = divided(grid)
    return _matrix(grid, cells, choices or conditions or ["seed"], conditions if choices else [], crossed=True)


def axes_of(grid: Grid) -> tuple[list[str], list[str]]:
    """The axes that rows and columns of a matrix are values of."""
    choices, conditions = divided(grid)
    if choices and conditions:
        return choices, conditions
    proper = choices or conditions or ["seed"]
    first = next((axis for axis in proper if axis in ("aggregator", "algorithm")), proper[0])
    return [first], [axis for axis in proper if axis != first]


def divided(grid: Grid) -> tuple[list[str], list[str]]:
    """The axes that are no conditions, and those that are; without the seed."""
    proper = [axis for axis in grid.axes if axis != "seed"]
    return [axis for axis in proper if not is_condition(axis)], [axis for axis in proper if is_condition(axis)]


def setting(grid: Grid, values: Mapping[str, Any], axes: Sequence[str]) -> str:
    """The values of some axes in words, numbers with the digits that tell them apart: ``krum, step_size=0.35``."""
    return describe({axis: texts(grid.labels[axis])[values[axis]] for axis in axes})


def texts(values: Sequence[Any]) -> dict[Any, str]:
    """The values of an axis, numbers rounded to four digits, or to as many as tell them apart."""
    for digits in range(4, 18):
        shown = {x: f"{float(f'{x:.{digits}g}'):.15g}" if isinstance(x, float) else str(x) for x in values}
        if len(set(shown.values())) == len(shown):
            return shown
    return {x: str(x) for x in values}


def _matrix(grid: Grid, cells: Sequence[Any], by: Sequence[str], over: Sequence[str], crossed: bool) -> Matrix:
    """The values of combinations of the axes ``by``, with their worst case over the others if they are crossed."""

    def place(values: Mapping[str, Any]) -> tuple[str, str]:
        row = texts(grid.labels[by[0]])[values[by[0]]] if len(by) == 1 else setting(grid, values, by)
        return row, setting(grid, values, over)

    places = {place(point.values): point.values for point in grid.points}
    settings = {row: {axis: values[axis] for axis in by} for (row, _), values in places.items()}
    rows, columns = tuple(settings), tuple(dict.fromkeys(column for _, column in places))
    groups = grouped(cells, lambda cell: place(cell.values))
    num_seeds, criterion = len(grid.points) // len(places), criterion_of(cells)

    def entries(of: Callable[[list[Cell]], Any]) -> np.ndarray:
        return np.array([[of(groups.get((row, column), [])) for column in columns] for row in rows])

    measured = criterion.column, criterion.test
    mean, on_test = (entries(lambda group, name=name: mean_final(group, name)) for name in measured)
    shown = entries(lambda group: _text(group, criterion, num_seeds)).tolist()
    worst = criterion.worst(mean, axis=1)  # NaN if an entry is: a row with a missing entry has no worst case
    numeric = len(by) == 1 and all(isinstance(value, int | float) for value in grid.labels[by[0]])
    best = criterion.merits(worst) if crossed else criterion.merits(mean).max(axis=1)
    order = np.arange(len(rows)) if numeric and not crossed else np.argsort(-best, kind="stable")
    return Matrix(
        criterion,
        ", ".join(by),
        tuple(rows[i] for i in order),
        tuple(column or title(criterion.column) for column in columns),
        num_seeds,
        mean[order],
        tuple(tuple(shown[i]) for i in order),
        worst[order] if crossed else None,
        criterion.worst(on_test, axis=1)[order] if crossed else None,
        tuple(settings[rows[i]] for i in order),
    )


def criterion_of(cells: Sequence[Cell]) -> Criterion:
    """By what cells are compared."""
    return common(cell for cell in cells if cell.status in COMPLETE)


def mean_final(cells: Sequence[Cell], metric: str) -> float:
    """A metric at the end of the cells that got there, its mean over them; NaN if none has."""
    return exact_mean(_finals(cells, metric))


def exact_mean(values: np.ndarray) -> float:
    """The mean of values, NaN of none; the sum is exact, so that equal values in another order are a tie."""
    return math.fsum(values) / values.size if values.size else np.nan


def _finals(cells: Sequence[Cell], metric: str) -> np.ndarray:
    """As files hold them, so that a sweep chooses the same before and after it was resumed; costs are added up."""
    columns = [_numbers(cell.history[metric]) for cell in cells if cell.status in COMPLETE]
    return np.array([column.sum() if is_counted(metric) else column[-1] for column in columns if column.size])


def _text(cells: Sequence[Cell], by: Criterion, num_seeds: int) -> str:
    finals, statuses = _finals(cells, by.column), {cell.status for cell in cells}
    if not finals.size:
        return "failed" if "failed" in statuses else "-"
    mark = "*" if "diverged" in statuses else ""
    missing = f" ({finals.size} of {num_seeds})" if finals.size < num_seeds else ""
    return mean_and_spread(finals, by) + mark + missing


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
