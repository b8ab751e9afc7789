"""The outcome of a sweep, read from its results folder, and the quantities that claims are judged by."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from fedjax_drag.experiment.config.names import slug
from fedjax_drag.experiment.run import metrics_file
from fedjax_drag.experiment.run.metrics_file import History
from fedjax_drag.experiment.sweep import sweep
from fedjax_drag.experiment.sweep.grid import describe
from fedjax_drag.experiment.sweep.outcome_table import COMPLETE, Cell

TAIL = 5
"""Evaluations at the end of a run whose mean is its final accuracy: under attack a single one varies by points."""

NOT_MEASURED, DIVERGED = "not measured", "diverged"
"""Verdicts on a claim whose cells were not run to the end, or whose model diverged."""


class MissingError(Exception):
    """The outcome lacks what a question needs; the message is the verdict."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Cells of a sweep.

    Attributes:
      cells: with their status and their metrics at each evaluation.
      folder: results folder, in which the metrics of each client are; None if the cells were not read from one.
    """

    cells: tuple[Cell, ...]
    folder: Path | None = None

    def at(self, values: Mapping[str, Any]) -> "Outcome":
        """The cells with these values of axes."""
        chosen = (cell for cell in self.cells if all(cell.values.get(axis) == x for axis, x in values.items()))
        return dataclasses.replace(self, cells=tuple(chosen))

    def labels(self, axis: str) -> list[Any]:
        """The values of an axis that occur, in order."""
        return list(dict.fromkeys(cell.values[axis] for cell in self.cells if axis in cell.values))

    def complete(self) -> tuple[Cell, ...]:
        """The cells that ran to the end.

        Raises:
          MissingError: no cell did.
        """
        cells = tuple(cell for cell in self.cells if cell.status in COMPLETE)
        if not cells:
            raise MissingError(NOT_MEASURED)
        return cells

    def curve(self, name: str = "test_accuracy") -> tuple[np.ndarray, np.ndarray]:
        """Rounds of the evaluations, and the mean of a metric over the cells, which should differ in the seed only.

        A run that diverged and ended before the others keeps its last value.

        Raises:
          MissingError: no cell has the metric.
        """
        histories = [cell.history for cell in self.complete() if name in cell.history]
        if not histories:
            raise MissingError(NOT_MEASURED)
        longest = max(histories, key=lambda history: len(history["round"]))["round"]
        stacked = [np.pad(history[name], (0, len(longest) - len(history[name])), mode="edge") for history in histories]
        return longest, np.mean(stacked, axis=0)

    def level(self, name: str = "test_accuracy") -> float:
        """Mean over the last :data:`TAIL` evaluations and over the seeds; values that are not finite count as 0."""
        return float(np.nan_to_num(self.curve(name)[1][-TAIL:]).mean())

    def best(self) -> float:
        """Maximum of the mean accuracy."""
        return float(np.nan_to_num(self.curve()[1]).max())

    def first(self, accuracy: float) -> float:
        """First round at which the mean accuracy is reached; infinite if it never is."""
        rounds, mean = self.curve()
        reached = np.flatnonzero(mean >= accuracy)
        return float(rounds[reached[0]]) if reached.size else float("inf")

    def swing(self) -> float:
        """Mean absolute change of a run's accuracy between evaluations, in the second half of the run."""
        halves = [cell.history["test_accuracy"][len(cell.history["round"]) // 2 :] for cell in self.complete()]
        return float(np.mean([np.abs(np.diff(half)).mean() if len(half) > 1 else 0.0 for half in halves]))

    def diverged(self) -> bool:
        """Whether a cell ended with a parameter or a loss that is not finite."""
        return any(cell.status == DIVERGED for cell in self.complete())

    def of_clients(self, name: str) -> list[History]:
        """The complete histories of the cells, including the metrics of each client.

        Raises:
          MissingError: a history is missing or lacks the metric ``name``.
        """
        if self.folder is None:
            raise MissingError(NOT_MEASURED)
        places = [self.folder / sweep.CELLS / slug(describe(cell.values)) for cell in self.complete()]
        histories = [metrics_file.read(place / metrics_file.METRICS).history for place in places]
        if any(name not in history for history in histories):
            raise MissingError(NOT_MEASURED)
        return histories


def read(folder: Path) -> Outcome | None:
    """The outcome of a sweep; None if there is no table yet.

    Args:
      folder: results folder of a sweep, finished or not.
    """
    path = folder / sweep.PARQUET
    if not path.is_file():
        return None
    columns = parquet.read_table(path).to_pydict()
    names = list(columns)
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
    return Outcome(tuple(cells), folder)


def _column(column: Sequence[Any], rows: Sequence[int]) -> np.ndarray:
    return np.array([np.nan if column[row] is None else column[row] for row in rows], np.float64)
