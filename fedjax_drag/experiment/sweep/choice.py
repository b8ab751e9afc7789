"""The setting of a sweep that is best, and by which examples it is chosen."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.sweep.grid import Grid, describe
from fedjax_drag.experiment.sweep.outcome_table import Cell, mean_final, metric_of, percent
from fedjax_drag.simulation.result import TEST, VALIDATION


class Best(NamedTuple):
    """The setting with the highest accuracy at the end of its runs, the mean over their seeds.

    Attributes:
      values: by axis but the seed, its number or the label of its value.
      metric: by which it is chosen: ``validation_accuracy`` where all cells have it, else ``test_accuracy``.
      accuracy: of that metric.
      test_accuracy: of the same runs.
    """

    values: dict[str, Any]
    metric: str
    accuracy: float
    test_accuracy: float

    def __str__(self) -> str:
        test = f"test accuracy {percent(self.test_accuracy)} %"
        by = f"by validation accuracy ({percent(self.accuracy)} %)" if self.metric == VALIDATION else "on the test set"
        return f"{describe(self.values)}: {test}, chosen {by}"


def best(grid: Grid, cells: Sequence[Cell]) -> Best | None:
    """The best setting; None if there are not two of them, or none whose cells have all come to a good end.

    Args:
      grid: the sweep.
      cells: those that have run.
    """
    by_values: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        by_values.setdefault(_setting(cell.values), []).append(cell)
    settings = {_setting(point.values) for point in grid.points}
    if len(settings) < 2:
        return None
    metric, num_seeds = metric_of(cells), len(grid.points) // len(settings)
    ended = [
        same for same in by_values.values() if len(same) == num_seeds and all(cell.status == "done" for cell in same)
    ]
    finals = [mean_final(same, metric) for same in ended]
    if not np.isfinite(finals).any():
        return None
    chosen = ended[int(np.nanargmax(finals))]
    values = {axis: value for axis, value in chosen[0].values.items() if axis != "seed"}
    return Best(values, metric, mean_final(chosen, metric), mean_final(chosen, TEST))


def _setting(values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for axis, value in values.items() if axis != "seed")
