"""Figures that the papers print for their curves: the accuracy at the end, and the round at which one is reached."""

from collections.abc import Mapping
from typing import Any

from reproduction.targets.target import Target

Points = tuple[tuple[float, float], ...]
"""Pairs of round and accuracy, a share between 0 and 1."""


def _table_v(rounds: int, accuracy: float, rows: Mapping[str, tuple[float, int | None]]) -> dict[str, Points]:
    """Points of a column of Table V of TACO: percent after the last round, and the round at which one is reached."""
    return {
        label: ((rounds, percent / 100), *(((reached, accuracy),) if reached else ()))
        for label, (percent, reached) in rows.items()
    }


_ADULT = _table_v(
    50,
    0.78,
    {
        "FedAvg": (78.88, 24),
        "FedProx": (78.92, 24),
        "FoolsGold": (83.50, 20),
        "SCAFFOLD": (82.24, 10),
        "STEM": (78.83, 22),
        "FedACG": (83.69, 11),
        "TACO": (83.80, 8),
    },
)
_FASHION_MNIST = _table_v(
    100,
    0.7,
    {
        "FedAvg": (71.36, 85),
        "FedProx": (67.14, None),
        "FoolsGold": (73.09, 80),
        "SCAFFOLD": (68.84, None),
        "STEM": (72.97, 69),
        "FedACG": (70.91, 92),
        "TACO": (73.28, 59),
    },
)

PRINTED: Mapping[str, Mapping[str, Points]] = {"taco004_table5_adult": _ADULT, "taco004_table5_fmnist": _FASHION_MNIST}
"""By the name of a target, which has one panel, and by the label of a line."""


def points(target: Target, label: Any) -> Points:
    """What the paper prints for a line of a target's figure, or of the target that it is another setting of."""
    return PRINTED.get(target.setting_of or target.name, {}).get(label, ())
