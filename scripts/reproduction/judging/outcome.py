"""The outcome of a sweep, and the quantities of a cell that claims are judged by."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from fedjax_drag.experiment.run.metrics_file import History
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.outcome_table import COMPLETE, Cell
from fedjax_drag.simulation import criterion

TAIL = 0.1
"""Share of the rounds, at the end of a run, whose evaluations have its final accuracy as their mean: under attack a
single one varies by points."""

NOT_MEASURED = "not measured"
"""The verdict on a claim whose cells were not run to the end."""

DIVERGED = "diverged"
"""The status of a cell whose model diverged."""

ACCURACY = "test_accuracy"


class MissingError(Exception):
    """The outcome lacks what a question needs; the message says what."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Cells of a sweep.

    Attributes:
      cells: with their status and their metrics at each evaluation.
      times: by method, milliseconds of its clients in each turn; empty if they were not timed.
      wanted: by axis, the values of which the whole sweep has cells, those that have not run included.
    """

    cells: tuple[Cell, ...]
    times: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    wanted: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)

    def at(self, values: Mapping[str, Any]) -> "Outcome":
        """The cells with these values of axes."""
        chosen = (cell for cell in self.cells if all(cell.values.get(axis) == x for axis, x in values.items()))
        return dataclasses.replace(self, cells=tuple(chosen))

    def labels(self, axis: str) -> list[Any]:
        """The values of an axis that occur, in the order of the whole sweep where that is known, then of the cells."""
        found = dict.fromkeys(cell.values[axis] for cell in self.cells if axis in cell.values)
        return [value for value in dict.fromkeys([*self.wanted.get(axis, ()), *found]) if value in found]

    def complete(self) -> tuple[Cell, ...]:
        """The cells that ran to the end.

        Raises:
          MissingError: no cell did.
        """
        cells = tuple(cell for cell in self.cells if cell.status in COMPLETE)
        if not cells:
            raise MissingError("")
        return cells

    def by_seed(self, measure: Callable[[Cell], Any]) -> dict[int, Any]:
        """A quantity of the cell of each seed; the cells must differ in the seed only.

        Raises:
          MissingError: no cell ran to the end, or one lacks what the quantity is computed from.
          ValueError: two cells have the same seed.
        """
        cells = self.complete()
        try:
            found = {cell.values.get("seed", 0): measure(cell) for cell in cells}
        except KeyError as error:
            raise MissingError(f"no {error.args[0]}") from None
        if len(found) < len(cells):
            raise ValueError(f"{[cell.values for cell in cells]}: must differ in the seed")
        return found

    def time_ratios(self, method: str, other: str) -> list[float]:
        """The ratio of a method's client time to another's in each turn.

        Raises:
          MissingError: they were not timed.
        """
        if method not in self.times or other not in self.times:
            raise MissingError("the clients were not timed")
        return [own / base for own, base in zip(self.times[method], self.times[other], strict=True)]

    def curves(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Rounds of the evaluations, and a metric of each cell ``[N, E]``; the cells should differ in the seed only.

        A run that diverged and ended before the others keeps its last value.

        Raises:
          MissingError: no cell has the metric.
        """
        histories = [cell.history for cell in self.complete() if name in cell.history]
        if not histories:
            raise MissingError(f"no {name}")
        longest = max(histories, key=lambda history: len(history["round"]))["round"]
        stacked = [np.pad(history[name], (0, len(longest) - len(history[name])), mode="edge") for history in histories]
        return longest, np.stack(stacked)

    def level(self, name: str = ACCURACY) -> float:
        """Mean over the evaluations :func:`at_the_end` and over the seeds; values that are not finite count as 0."""
        rounds, curves = self.curves(name)
        return float(np.nan_to_num(curves.mean(0)[at_the_end(rounds)]).mean())


def for_judging(
    cells: Sequence[Cell],
    times: Mapping[str, Sequence[float]] | None = None,
    wanted: Mapping[str, Sequence[Any]] | None = None,
) -> Outcome:
    """An outcome in which the accuracy of a model that diverged is 0 from there to the last round of the sweep."""
    complete = [cell.history["round"] for cell in cells if cell.status in COMPLETE and "round" in cell.history]
    rounds = max(complete, key=len, default=np.zeros(0))
    return Outcome(tuple(_to_the_end(cell, rounds) for cell in cells), times or {}, wanted or {})


def at_the_end(rounds: np.ndarray) -> np.ndarray:
    """Which evaluations are in the last :data:`TAIL` of the rounds, the last one at least; bool like ``rounds``."""
    return rounds > (1 - TAIL) * rounds[-1]


def level(cell: Cell, name: str = ACCURACY) -> float:
    """Mean of a metric over the evaluations :func:`at_the_end`."""
    return float(cell.history[name][at_the_end(cell.history["round"])].mean())


def best(cell: Cell) -> float:
    """Maximum of the accuracy."""
    return float(cell.history[ACCURACY].max())


def best_before(cell: Cell) -> float:
    """Maximum of the accuracy before the evaluations :func:`at_the_end`, of which there must be others."""
    return float(cell.history[ACCURACY][~at_the_end(cell.history["round"])].max())


def over_the_run(cell: Cell) -> float:
    """Mean accuracy over all evaluations."""
    return float(cell.history[ACCURACY].mean())


def first(cell: Cell, accuracy: float) -> float:
    """First round at which the accuracy is reached; infinite if it never is."""
    place = criterion.ACCURACY.first_reached(cell.history[ACCURACY], accuracy)
    return float("inf") if place is None else float(cell.history["round"][place])


def swing(cell: Cell) -> float:
    """Mean absolute change of the accuracy between evaluations, in the second half; 1 for a run that diverged."""
    half = cell.history[ACCURACY][len(cell.history["round"]) // 2 :]
    if cell.status == DIVERGED:
        return 1.0
    return float(np.abs(np.diff(half)).mean()) if len(half) > 1 else 0.0


def read(folder: Path) -> Outcome | None:
    """The outcome of a sweep with the metrics as they are; None if there is no table yet.

    Args:
      folder: results folder of a sweep, finished or not.

    Raises:
      ValueError: the table is not one of a sweep.
    """
    path = folder / sweep_folder.PARQUET
    if not path.is_file():
        return None
    columns = parquet.read_table(path).to_pydict()
    names = list(columns)
    if not {"status", "message", "round"} <= columns.keys():
        raise ValueError(f"{str(path)!r}: must be the table of a sweep, with its status, message and round")
    axes, metrics = names[: names.index("status")], names[names.index("message") + 1 :]
    rows_of: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip(*(columns[axis] for axis in axes), strict=True)):
        rows_of.setdefault(key, []).append(row)
    cells = [
        Cell(
            dict(zip(axes, key, strict=True)),
            columns["status"][rows[0]],
            columns["message"][rows[0]],
            {name: _column(columns[name], rows) for name in metrics},
        )
        for key, rows in rows_of.items()
    ]
    return Outcome(tuple(cells))


def _column(column: Sequence[Any], rows: Sequence[int]) -> np.ndarray:
    return np.array([np.nan if column[row] is None else column[row] for row in rows], np.float64)


def _to_the_end(cell: Cell, rounds: np.ndarray) -> Cell:
    """The cell with accuracy 0 where it is not finite and from the divergence on."""
    if cell.status not in COMPLETE or ACCURACY not in cell.history:
        return cell
    accuracy = np.array(cell.history[ACCURACY], np.float64)
    own = cell.history["round"]
    if cell.status == DIVERGED:
        bad = ~np.isfinite(accuracy) | ~np.isfinite(cell.history.get("test_loss", accuracy))
        accuracy[int(np.argmax(bad)) if bad.any() else len(bad) - 1 :] = 0
        accuracy = np.append(accuracy, np.zeros(max(0, len(rounds) - len(accuracy))))
        own = np.append(own, rounds[len(own) :])
    history: History = cell.history | {"round": own, ACCURACY: np.nan_to_num(accuracy, posinf=0, neginf=0)}
    return dataclasses.replace(cell, history=history)
