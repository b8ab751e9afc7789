"""Figures that the papers print for their curves: the accuracy at the end, and the round at which one is reached."""

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.targets.target import Target

Points = tuple[tuple[float, float], ...]
"""Pairs of round and accuracy, a share between 0 and 1."""


_METHODS = ("FedAvg", "FedProx", "FoolsGold", "SCAFFOLD", "STEM", "FedACG", "TACO")
"""The rows of Table V of TACO."""


def _table_v(
    rounds: int, accuracies: Sequence[float], accuracy: float, reached: Sequence[int | None]
) -> dict[str, Points]:
    """A column of Table V: percent after the last round, and the round at which ``accuracy`` is reached."""
    columns = zip(_METHODS, accuracies, reached, strict=True)
    return {
        label: ((rounds, percent / 100), *(((first, accuracy),) if first else ())) for label, percent, first in columns
    }


PRINTED: Mapping[str, Mapping[str, Points]] = {
    "taco004_table5_adult": _table_v(
        50, (78.88, 78.92, 83.50, 82.24, 78.83, 83.69, 83.80), 0.78, (24, 24, 20, 10, 22, 11, 8)
    ),
    "taco004_table5_fmnist": _table_v(
        100, (71.36, 67.14, 73.09, 68.84, 72.97, 70.91, 73.28), 0.7, (85, None, 80, None, 69, 92, 59)
    ),
}
"""By the name of a target, which has one panel, and by the label of a line."""


def points(target: Target, label: Any) -> Points:
    """What the paper prints for a line of a target's figure, or of the target that it is another setting of."""
    return PRINTED.get(target.setting_of or target.name, {}).get(label, ())
