"""Intervals of what is measured on several seeds."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit  # scipy.stats is slow to import

from fedjax_drag.simulation.criterion import ACCURACY, Criterion

LEVEL = 0.95
"""Of the intervals."""


class Estimate(NamedTuple):
    """A mean over seeds and half the width of its interval by Student's t; NaN for one seed."""

    mean: float
    half: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.mean) > self.half

    def __str__(self) -> str:
        return self.text(ACCURACY)

    def text(self, by: Criterion) -> str:
        """Mean and half width as figures of a criterion; of what has no interval the mean alone."""
        half = "" if np.isnan(self.half) else f" \N{PLUS-MINUS SIGN} {by.figure(self.half)}"
        return by.figure(self.mean) + half


def mean_and_spread(values: Float[np.ndarray, " seeds"], by: Criterion) -> str:
    """Mean and, of several values, standard deviation as figures of a criterion."""
    several = len(values) > 1 and np.isfinite(values).all()
    spread = f" \N{PLUS-MINUS SIGN} {by.figure(np.std(values, ddof=1))}" if several else ""
    return by.figure(np.mean(values)) + spread


def estimate(by_seed: Float[np.ndarray, " seeds"]) -> Estimate:
    """The mean of independent values and its interval."""
    number = len(by_seed)
    if number < 2:
        return Estimate(float(by_seed.mean()), float("nan"))
    half = stdtrit(number - 1, (1 + LEVEL) / 2) * by_seed.std(ddof=1) / np.sqrt(number)
    return Estimate(float(by_seed.mean()), float(half))
