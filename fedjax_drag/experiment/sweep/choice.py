"""The setting of a sweep that is best, and by which examples it is chosen."""

from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.plain import grouped
from fedjax_drag.experiment.sweep.grid import Grid, describe
from fedjax_drag.experiment.sweep.outcome_table import Cell, crossed, divided, texts
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
    axes, _ = divided(grid)
    if not axes:
        return None
    setting, found = itemgetter(*axes), crossed(grid, cells)
    assert found.worst is not None
    assert found.worst_on_test is not None
    points = grouped(grid.points, lambda point: setting(point.values))
    known = {(*cell.values.values(),): cell.status for cell in cells}
    statuses = [{known.get((*point.values.values(),)) for point in points[setting(x)]} for x in found.settings]
    place = place_of_best(found.worst, statuses, found.criterion)
    if len(points) < 2 or place is None or statuses[place] != {"done"}:
        return None
    worst, on_test = float(found.worst[place]), float(found.worst_on_test[place])
    return Best(found.settings[place], found.criterion, worst, on_test, len(found.columns))


def place_of_best(worst: np.ndarray, statuses: Sequence[Collection[str | None]], by: Criterion) -> int | None:
    """The place of the best setting, of equal ones the first; None if none has a figure.

    One whose runs have all come to a good end goes before others, and one of which a run has diverged comes last.

    Args:
      worst: by setting, its figure under the condition that is worst for it.
      statuses: by setting, those of its runs.
      by: what they are figures of.
    """
    merits = by.merits(worst)
    ranks = [({*ended} == {"done"}, "diverged" not in ended, x) for ended, x in zip(statuses, merits, strict=True)]
    places = np.flatnonzero(np.isfinite(merits)).tolist()
    return max(places, key=ranks.__getitem__, default=None)
