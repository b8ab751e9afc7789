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
    if not axes:
        return None
    setting = itemgetter(*axes)
    planned = Counter(setting(point.values) for point in grid.points)
    done: dict[Any, list[Cell]] = {}
    for cell in cells:
        if cell.status == "done":
            done.setdefault(setting(cell.values), []).append(cell)
    metric = metric_of(cells)
    lowest = {one: float(np.min(_means(same, metric))) for one, same in done.items() if len(same) == planned[one]}
    finite = {one: accuracy for one, accuracy in lowest.items() if np.isfinite(accuracy)}
    if len(planned) < 2 or not finite:
        return None
    chosen = max(finite, key=lambda one: finite[one])
    on_test, values = _means(done[chosen], TEST), done[chosen][0].values
    return Best({axis: values[axis] for axis in axes}, metric, finite[chosen], min(on_test), len(on_test))


def _means(cells: Sequence[Cell], metric: str) -> list[float]:
    """The mean over the seeds under each condition under which a setting ran."""
    by_condition: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        condition = tuple(value for axis, value in cell.values.items() if axis != "seed")
        by_condition.setdefault(condition, []).append(cell)
    return [mean_final(same, metric) for same in by_condition.values()]
