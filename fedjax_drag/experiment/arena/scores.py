"""Test accuracies as figures with intervals, and ranks that say where seeds cannot tell two entries apart."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

LEVEL = 0.95
"""Of the intervals."""


class Estimate(NamedTuple):
    """A mean over seeds and half the width of its interval by Student's t; NaN for one seed."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}" + ("" if np.isnan(self.half) else f" \N{PLUS-MINUS SIGN} {100 * self.half:.1f}")


class Score(NamedTuple):
    """The figures of one entry, over all tasks.

    Attributes:
      clean: test accuracy without an attack.
      worst: with the attack that hurts most in that task, under that seed; without one where none hurts.
      mean: over the attacks.
      rank: 1 plus the number of entries whose worst case is better beyond doubt: the interval of the difference, paired
        by seed, is above 0.
    """

    clean: Estimate
    worst: Estimate
    mean: Estimate
    rank: int


def estimate(by_seed: Float[np.ndarray, " seeds"]) -> Estimate:
    """The mean of independent values and its interval."""
    number = len(by_seed)
    if number < 2:
        return Estimate(float(by_seed.mean()), float("nan"))
    half = stats.t.ppf((1 + LEVEL) / 2, number - 1) * by_seed.std(ddof=1) / np.sqrt(number)
    return Estimate(float(by_seed.mean()), float(half))


def worst_by_seed(accuracy: Float[np.ndarray, "tasks opponents seeds"]) -> Float[np.ndarray, " seeds"]:
    """The lowest accuracy over the opponents, its mean over the tasks."""
    return accuracy.min(axis=1).mean(axis=0)


def score(accuracies: Mapping[str, Float[np.ndarray, "tasks opponents seeds"]]) -> dict[str, Score]:
    """The figures of each entry, the best first.

    Args:
      accuracies: test accuracies by entry; the first opponent is the one that does not attack.
    """
    worst = {label: worst_by_seed(accuracy) for label, accuracy in accuracies.items()}
    scores = {
        label: Score(
            estimate(accuracy[:, 0].mean(axis=0)),
            estimate(worst[label]),
            estimate(accuracy[:, 1:].mean(axis=(0, 1))),
            1 + sum(_is_better(other, worst[label]) for other in worst.values()),
        )
        for label, accuracy in accuracies.items()
    }
    return dict(sorted(scores.items(), key=lambda item: (item[1].rank, -item[1].worst.mean)))


def _is_better(one: Float[np.ndarray, " seeds"], other: Float[np.ndarray, " seeds"]) -> bool:
    """Whether the interval of the paired difference is above 0."""
    difference = estimate(one - other)
    return difference.mean - difference.half > 0
