"""Test accuracies as figures with intervals, and ranks that say where seeds cannot tell two entries apart."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fedjax_drag.experiment.intervals import Estimate, estimate

KEPT = 0.9
"""Share of its accuracy without an attack that an entry keeps under one that it withstands."""


class Score(NamedTuple):
    """The figures of one entry, over all tasks.

    Attributes:
      clean: test accuracy without an attack.
      worst: with the attack that hurts most in that task, under that seed; without one where none hurts.
      mean: over the attacks.
      rank: 1 plus the number of entries whose worst case is better beyond doubt: the interval of the difference, paired
        by seed, is above 0.
      last_rank: the number of entries less those whose worst case is worse beyond doubt.
    """

    clean: Estimate
    worst: Estimate
    mean: Estimate
    rank: int
    last_rank: int

    @property
    def ranks(self) -> str:
        """The ranks that the intervals leave open, such as ``1-4``."""
        same = self.rank == self.last_rank
        return str(self.rank) if same else f"{self.rank}\N{EN DASH}{self.last_rank}"


def worst_by_seed(accuracy: Float[np.ndarray, "tasks opponents seeds"]) -> Float[np.ndarray, " seeds"]:
    """The lowest accuracy over the opponents, its mean over the tasks."""
    return accuracy.min(axis=1).mean(axis=0)


def withstood(accuracy: Float[np.ndarray, "tasks opponents seeds"]) -> Bool[np.ndarray, " attacks"]:
    """Which attacks leave an entry :data:`KEPT` of its accuracy without one in every task, mean over the seeds."""
    means = accuracy.mean(axis=2)
    return (means[:, 1:] >= KEPT * means[:, :1]).all(axis=0)


def score(accuracies: Mapping[str, Float[np.ndarray, "tasks opponents seeds"]]) -> dict[str, Score]:
    """The figures of each entry, the highest worst case first, of equal ones by label.

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
            len(worst) - sum(_is_better(worst[label], other) for other in worst.values()),
        )
        for label, accuracy in accuracies.items()
    }
    return dict(sorted(scores.items(), key=lambda item: (-item[1].worst.mean, item[0])))


def _is_better(one: Float[np.ndarray, " seeds"], other: Float[np.ndarray, " seeds"]) -> bool:
    """Whether the interval of the paired difference is above 0."""
    difference = estimate(one - other)
    return difference.mean - difference.half > 0
