"""Intervals of what is measured on several seeds, and the verdicts that follow from them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedjax_drag.experiment.intervals import LEVEL, estimate

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"

FEWEST = 3
"""Seeds or turns from which something is decided."""

_DECIMALS = 6
"""Of recorded figures: machines differ in the last bits of a float64."""


class Interval(NamedTuple):
    """A quantity with its interval, and the range in which it is as the paper says.

    Attributes:
      mean: over the repetitions; of ratios the geometric mean or the median.
      low: lower end of the interval; NaN if there is one repetition, 0 of a ratio that is known from above alone.
      high: upper end; infinite of a ratio that is known from below alone.
      unit: ``points`` (of percent), ``times`` or ``alpha``.
      repetitions: their number.
      at_least: lower boundary of the claim, in the same unit.
      at_most: upper boundary of the claim.
      strict: whether the boundaries themselves contradict the claim.
      repeated: what the repetitions are, ``seeds`` or ``turns`` of a timing.
    """

    mean: float
    low: float
    high: float
    unit: str
    repetitions: int
    at_least: float = -math.inf
    at_most: float = math.inf
    strict: bool = False
    repeated: str = "seeds"

    @property
    def verdict(self) -> str:
        """``holds`` or ``does not hold`` if the whole interval is on that side of the boundaries."""
        if self.repetitions < FEWEST:
            return UNDECIDED
        if self.strict:
            inside = self.low > self.at_least and self.high < self.at_most
            outside = self.high <= self.at_least or self.low >= self.at_most
        else:
            inside = self.low >= self.at_least and self.high <= self.at_most
            outside = self.high < self.at_least or self.low > self.at_most
        return HOLDS if inside else FAILS if outside else UNDECIDED

    def as_row(self) -> dict[str, Any]:
        """The entry of a record; what is not finite is None."""
        names = ("mean", "low", "high", "at_least", "at_most")
        return {name: _rounded(getattr(self, name)) for name in names} | {"unit": self.unit} | _shared(self)

    def __str__(self) -> str:
        signed = "+.1f" if self.unit == "points" else ".2f"
        ends = f" [{self.low:{signed}}, {self.high:{signed}}]" if math.isfinite(self.low) else ""
        return f"{self.mean:{signed}}{ends} {self.unit}"


class Votes(NamedTuple):
    """A question that each seed answers with yes or no.

    Attributes:
      yes: seeds that are as the paper says.
      repetitions: number of seeds.
      repeated: as for :class:`Interval`.
    """

    yes: int
    repetitions: int
    repeated: str = "seeds"

    @property
    def verdict(self) -> str:
        """``holds`` if every seed says yes, ``does not hold`` if every seed says no."""
        if self.repetitions < FEWEST or 0 < self.yes < self.repetitions:
            return UNDECIDED
        return HOLDS if self.yes else FAILS

    def as_row(self) -> dict[str, Any]:
        """The entry of a record."""
        return {"yes": self.yes, "unit": "votes"} | _shared(self)

    def __str__(self) -> str:
        return f"so on {self.yes} of {self.repetitions} seeds"


Part = Interval | Votes


def across(
    values: np.ndarray,
    unit: str,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    strict: bool = False,
) -> Interval:
    """The interval of a quantity that was measured once a seed, by Student's t.

    Args:
      values: of each seed ``[N]``, N >= 1: shares for ``points``, logarithms for ``times``.
      unit: of the interval and its boundaries.
      at_least: lower boundary of the claim, in this unit.
      at_most: upper boundary.
      strict: whether the boundaries contradict the claim.
    """
    mean, half = estimate(np.asarray(values, np.float64))
    low, mean, high = (_shown(x, unit) for x in (mean - half, mean, mean + half))
    return Interval(mean, low, high, unit, len(values), at_least, at_most, strict)


def of_turns(ratios: Sequence[float], *, at_least: float = -math.inf, at_most: float = math.inf) -> Interval:
    """The median of ratios of times taken in turn, and its interval without an assumption on their distribution."""
    ends = stats.quantile_test(ratios, p=0.5).confidence_interval(LEVEL)
    figures = float(np.median(ratios)), float(ends.low), float(ends.high)
    return Interval(*figures, "times", len(ratios), at_least, at_most, repeated="turns")


def combined(verdicts: Iterable[str]) -> str:
    """The verdict on a claim of several parts: one that does not hold decides."""
    found = set(verdicts)
    return FAILS if FAILS in found else HOLDS if found == {HOLDS} else UNDECIDED


def _shared(part: Part) -> dict[str, Any]:
    return {name: getattr(part, name) for name in ("repetitions", "repeated", "verdict")}


def _shown(value: float, unit: str) -> float:
    return 100 * value if unit == "points" else math.exp(value) if unit == "times" else value


def _rounded(figure: float) -> float | None:
    return round(figure, _DECIMALS) if math.isfinite(figure) else None
