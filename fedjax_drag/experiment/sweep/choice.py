"""The setting of a sweep that is best, and by which examples it is chosen."""

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.config.config import is_condition
from fedjax_drag.experiment.sweep.grid import Grid, describe
from fedjax_drag.experiment.sweep.outcome_table import Cell, mean_final, metric_of, percent, texts
from fedjax_drag.simulation.result import TEST, VALIDATION


class Best(NamedTuple):
    """The setting with the highest accuracy at the end of its runs, the mean over their seeds.

    Attributes:
      values: its number or the label of its value, by each axis that is neither the seed nor one of
        :data:`~fedjax_drag.experiment.config.config.CONDITIONS`, such as attack and partition.
      metric: by which it is chosen: ``validation_accuracy`` where all cells have it, else ``test_accuracy``.
      accuracy: of that metric; under several conditions the lowest.
      test_accuracy: of the same runs; under several conditions the lowest.
      conditions: under how many it ran.
    """

    values: dict[str, Any]
    metric: str
    accuracy: float
    test_accuracy: float
    conditions: int = 1

    def __str__(self) -> str:
        worst = "worst-case " if self.conditions > 1 else ""
        test = f"{worst}test accuracy {percent(self.test_accuracy)} %"
        by = f"by validation accuracy ({percent(self.accuracy)} %)" if self.metric == VALIDATION else "on the test set"
        return f"{describe({axis: texts([value])[value] for axis, value in self.values.items()})}: {test}, chosen {by}"


def best(grid: Grid, cells: Sequence[Cell]) -> Best | None:
    """The best setting; None if there are not two of them, or none whose cells have all come to a good end.

    Args:
      grid: the sweep.
      cells: those that have run.
    """
    axes = [axis for axis in grid.axes if axis != "seed" and not is_condition(axis)]
    setting = itemgetter(*axes) if axes else str
    by_values: dict[Any, list[Cell]] = {}
    for cell in cells:
        by_values.setdefault(setting(cell.values), []).append(cell)
    planned = Counter(setting(point.values) for point in grid.points)
    if not axes or len(planned) < 2:
        return None
    metric = metric_of(cells)
    ended = [
        same
        for one, same in by_values.items()
        if len(same) == planned[one] and all(cell.status == "done" for cell in same)
    ]
    finals = [_lowest(same, metric) for same in ended]
    if not np.isfinite(finals).any():
        return None
    chosen = ended[int(np.nanargmax(finals))]
    values = {axis: chosen[0].values[axis] for axis in axes}
    return Best(values, metric, _lowest(chosen, metric), _lowest(chosen, TEST), len(_by_condition(chosen)))


def _lowest(cells: Sequence[Cell], metric: str) -> float:
    """The lowest mean over the seeds among the conditions under which a setting ran."""
    return float(np.min([mean_final(same, metric) for same in _by_condition(cells)]))


def _by_condition(cells: Sequence[Cell]) -> list[list[Cell]]:
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(tuple(value for axis, value in cell.values.items() if axis != "seed"), []).append(cell)
    return list(found.values())
