"""A finished sweep read back from its folder, and the few figures of it that claims are judged by."""

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
"""Evaluations at the end of a run whose mean is its level: under attack the last one alone swings by points."""


class MissingError(Exception):
    """Why there is no figure: a cell is not there, or the model that it is about diverged."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Cells of a sweep.

    Attributes:
      cells: as they came out, with the histories' figures per evaluation.
      folder: where they were read, for what histories have of each client; None if they come from elsewhere.
    """

    cells: tuple[Cell, ...]
    folder: Path | None = None

    def at(self, values: Mapping[str, Any]) -> "Outcome":
        """The cells that have these values by axis."""
        chosen = (cell for cell in self.cells if all(cell.values.get(axis) == x for axis, x in values.items()))
        return dataclasses.replace(self, cells=tuple(chosen))

    def labels(self, axis: str) -> list[Any]:
        """Values of an axis, in order."""
        return list(dict.fromkeys(cell.values[axis] for cell in self.cells if axis in cell.values))

    def complete(self) -> tuple[Cell, ...]:
        """Those that have run to their end.

        Raises:
          MissingError: there is none.
        """
        found = tuple(cell for cell in self.cells if cell.status in COMPLETE)
        if not found:
            raise MissingError("not measured")
        return found

    def curve(self, name: str = "test_accuracy") -> tuple[np.ndarray, np.ndarray]:
        """Rounds, and a figure's mean over the cells, which are to differ by seed only.

        A run that ended before the others, because it diverged, stays where it was.

        Raises:
          MissingError: no cell has it.
        """
        histories = [cell.history for cell in self.complete() if name in cell.history]
        if not histories:
            raise MissingError("not measured")
        longest = max(histories, key=lambda history: len(history["round"]))["round"]
        stacked = [np.pad(history[name], (0, len(longest) - len(history[name])), mode="edge") for history in histories]
        return longest, np.mean(stacked, axis=0)

    def level(self, name: str = "test_accuracy") -> float:
        """The mean of the last evaluations and over the seeds; what is not finite counts as 0."""
        return float(np.nan_to_num(self.curve(name)[1][-TAIL:]).mean())

    def best(self) -> float:
        """The highest point of the mean accuracy."""
        return float(np.nan_to_num(self.curve()[1]).max())

    def first(self, accuracy: float) -> float:
        """The round at which the mean accuracy gets there; infinite if it does not."""
        rounds, mean = self.curve()
        reached = np.flatnonzero(mean >= accuracy)
        return float(rounds[reached[0]]) if reached.size else float("inf")

    def swing(self) -> float:
        """Mean change of a run's accuracy from one evaluation to the next, in the second half of it."""
        halves = [cell.history["test_accuracy"][len(cell.history["round"]) // 2 :] for cell in self.complete()]
        return float(np.mean([np.abs(np.diff(half)).mean() if len(half) > 1 else 0.0 for half in halves]))

    def diverged(self) -> bool:
        """Whether a cell ended with parameters or a loss that are not finite."""
        return any(cell.status == "diverged" for cell in self.complete())

    def of_clients(self, name: str) -> list[History]:
        """The whole histories of the cells, what they have of each client included.

        Raises:
          MissingError: one of them is not there, or has no such figure.
        """
        if self.folder is None:
            raise MissingError("not measured")
        places = [self.folder / sweep.CELLS / slug(describe(cell.values)) for cell in self.complete()]
        found = [metrics_file.read(place / metrics_file.METRICS).history for place in places]
        if any(name not in history for history in found):
            raise MissingError("not measured")
        return found


def read(folder: Path) -> Outcome | None:
    """What a sweep left in its folder; None if there is no table yet.

    Args:
      folder: of a sweep, finished or not.
    """
    path = folder / sweep.PARQUET
    if not path.is_file():
        return None
    columns = parquet.read_table(path).to_pydict()
    names = list(columns)
    axes, figures = names[: names.index("status")], names[names.index("message") + 1 :]
    rows: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip(*(columns[axis] for axis in axes), strict=True)):
        rows.setdefault(key, []).append(row)
    cells = [
        Cell(
            dict(zip(axes, key, strict=True)),
            columns["status"][which[0]],
            columns["message"][which[0]],
            {name: _column(columns[name], which) for name in figures},
        )
        for key, which in rows.items()
    ]
    return Outcome(tuple(cells), folder)


def _column(column: Sequence[Any], which: Sequence[int]) -> np.ndarray:
    return np.array([np.nan if column[row] is None else column[row] for row in which], np.float64)
