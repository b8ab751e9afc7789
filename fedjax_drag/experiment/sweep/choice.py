"""The setting of a sweep that is best, and by which examples it is chosen."""

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.config.config import is_condition
from fedjax_drag.experiment.sweep.grid import Grid, describe
from fedjax_drag.experiment.sweep.outcome_table import Cell, crossed, texts
from fedjax_drag.simulation.criterion import VALIDATION, Criterion


class Best(NamedTuple):
    """The setting with the best accuracy, or what else ``metric`` says, at the end of its runs; the mean over seeds.

    Attributes:
      values: its number or the label of its value, by each axis that is neither the seed nor one of
        :data:`~fedjax_drag.experiment.config.config.CONDITIONS`, such as attack and partition.
      criterion: by what it is chosen, on the validation examples where all cells have them.
      value: of the criterion; under several conditions the worst.
      test_value: of the same runs on the test examples; under several conditions the worst.
      conditions: under how many it ran.
    """

    values: dict[str, Any]
    criterion: Criterion
    value: float
    test_value: float
    conditions: int = 1

    @property
    def accuracy(self) -> float:
        """``value``, where it is an accuracy."""
        return self.value

    @property
    def test_accuracy(self) -> float:
        """``test_value``, where it is an accuracy."""
        return self.test_value

    def __str__(self) -> str:
        worst = "worst-case " if self.conditions > 1 else ""
        by, unit = self.criterion, " %" * self.criterion.is_share
        test = f"{worst}test {by.label} {by.figure(self.test_value)}{unit}"
        on_validation = f"by validation {by.label} ({by.figure(self.value)}{unit})"
        chosen = on_validation if by.on == VALIDATION else "on the test set"
        setting = describe({axis: texts([value])[value] for axis, value in self.values.items()})
        return f"{setting}: {test}, chosen {chosen}"


def best(grid: Grid, cells: Sequence[Cell]) -> Best | None:
    """The best setting; None if there are not two of them, or none whose cells have all come to a good end.

    Args:
      grid: the sweep.
      cells: those that have run.
    """
    axes = [axis for axis in grid.axes if axis != "seed" and not is_condition(axis)]
    if not axes:
        return None
    setting, found = itemgetter(*axes), crossed(grid, cells)
    assert found.worst is not None
    assert found.worst_on_test is not None
    left = Counter(setting(point.values) for point in grid.points)
    several = len(left) > 1
    left.subtract(setting(cell.values) for cell in cells if cell.status == "done")
    for values, worst, on_test in zip(found.settings, found.worst, found.worst_on_test, strict=True):
        if several and not left[setting(values)] and np.isfinite(worst):
            return Best(values, found.criterion, float(worst), float(on_test), len(found.columns))
    return None
