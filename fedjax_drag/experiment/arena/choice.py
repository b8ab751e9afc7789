"""What attacker and defender choose, by validation accuracy alone."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Values = tuple[str | float, ...]
"""One value of each of some axes, in their order."""


class Place(NamedTuple):
    """Where a run of the tuning stands: what it was given of each kind of axes, and whom it met."""

    task: Values
    setting: Values
    opponent: str
    strength: Values


class Choice(NamedTuple):
    """What is played in a task.

    Attributes:
      setting: of the entry, the one with the highest worst case.
      strengths: of each opponent, the one that hurts that setting most.
      worst_case: validation accuracy of the setting, the lowest over opponents and strengths.
    """

    setting: Values
    strengths: dict[str, Values]
    worst_case: float


def choose(accuracy: Mapping[Place, float]) -> dict[Values, Choice]:
    """The choice in each task: ``argmax over settings of min over opponents and strengths`` of the accuracy.

    Of equal ones the first is taken, of settings and of strengths, in the order of ``accuracy``.

    Args:
      accuracy: validation accuracy at the end of the run, its mean over the tuning seeds.
    """
    return {task: _choose_in(task, accuracy) for task in _distinct(place.task for place in accuracy)}


def _choose_in(task: Values, accuracy: Mapping[Place, float]) -> Choice:
    worst: dict[Values, float] = {}
    for place, value in accuracy.items():
        if place.task == task:
            worst[place.setting] = min(worst.get(place.setting, float("inf")), value)
    setting = max(worst, key=lambda one: worst[one])
    strengths: dict[str, tuple[float, Values]] = {}
    for place, value in accuracy.items():
        if (place.task, place.setting) == (task, setting):
            lowest = strengths.get(place.opponent)
            if lowest is None or value < lowest[0]:
                strengths[place.opponent] = value, place.strength
    return Choice(setting, {opponent: strength for opponent, (_, strength) in strengths.items()}, worst[setting])


def _distinct(values: Iterable[Values]) -> list[Values]:
    return list(dict.fromkeys(values))
