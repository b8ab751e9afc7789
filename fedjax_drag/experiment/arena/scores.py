"""What is compared, such as test accuracies, with intervals, and ranks where seeds cannot tell two entries apart."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fedjax_drag.experiment.intervals import Estimate, estimate
from fedjax_drag.simulation.criterion import ACCURACY, Criterion

KEPT = 0.9
"""Share of its accuracy without an attack that an entry keeps under one that it withstands.

Of another criterion, a figure is worse than that without an attack by at most a tenth of it.
"""


class Score(NamedTuple):
    """The figures of one entry, over all tasks.

    Attributes:
      clean: test accuracy without an attack.
      worst: with the attack that hurts most in that task, under that seed; without one where none hurts.
      mean: over the attacks.
      rank: 1 plus the number of entries whose worst case is better beyond doubt: the interval of the difference, paired
        by seed, is above 0, or below where lower is better. Where seeds have no figure, one is better if it has all
        of them and the other none.
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


def measured(by: Criterion) -> str:
    """A criterion in words, with its unit."""
    return by.label + " in %" * by.is_share + " (lower is better)" * (not by.higher_is_better)


def of_failed(by: Criterion) -> float:
    """What a run that failed counts as: the worst share, or NaN for no figure, which is worse than any."""
    return float(not by.higher_is_better) if by.is_share else np.nan


def worst_by_seed(
    accuracy: Float[np.ndarray, "tasks opponents seeds"], by: Criterion = ACCURACY
) -> Float[np.ndarray, " seeds"]:
    """The worst figure over the opponents, its mean over the tasks."""
    return by.worst(accuracy, axis=1).mean(axis=0)


def withstood(
    accuracy: Float[np.ndarray, "tasks opponents seeds"], by: Criterion = ACCURACY
) -> Bool[np.ndarray, " attacks"]:
    """Which attacks leave an entry :data:`KEPT` of its accuracy without one in every task, mean over the seeds."""
    clean, attacked = np.split(accuracy.mean(axis=2), [1], axis=1)
    lost = clean - attacked if by.higher_is_better else attacked - clean
    return np.all(lost <= (1 - KEPT) * np.abs(clean), axis=0)


def score(
    accuracies: Mapping[str, Float[np.ndarray, "tasks opponents seeds"]], by: Criterion = ACCURACY
) -> dict[str, Score]:
    """The figures of each entry, the best worst case first, of equal ones by label.

    Args:
      accuracies: test accuracies by entry, or figures of another criterion with NaN for those that there are not; the
        first opponent is the one that does not attack.
      by: what they are figures of.
    """
    worst = {label: worst_by_seed(accuracy, by) for label, accuracy in accuracies.items()}
    scores = {
        label: Score(
            estimate(accuracy[:, 0].mean(axis=0)),
            estimate(worst[label]),
            estimate(accuracy[:, 1:].mean(axis=(0, 1))),
            1 + sum(_is_better(other, worst[label], by) for other in worst.values()),
            len(worst) - sum(_is_better(worst[label], other, by) for other in worst.values()),
        )
        for label, accuracy in accuracies.items()
    }
    return dict(sorted(scores.items(), key=lambda item: (-by.merits(item[1].worst.mean), item[0])))


def _is_better(one: Float[np.ndarray, " seeds"], other: Float[np.ndarray, " seeds"], by: Criterion) -> bool:
    """Whether the interval of the paired difference is above 0."""
    known, of_other = np.isfinite(one), np.isfinite(other)
    if not (known & of_other).all():
        return len(one) > 1 and bool(known.all() and not of_other.any())
    difference = estimate(by.merits(one) - by.merits(other))
    return difference.mean - difference.half > 0
