"""Intervals of what is measured on several seeds, and the verdicts that follow from them."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import stats

from fedjax_drag.experiment.intervals import LEVEL as CONFIDENCE
from fedjax_drag.experiment.intervals import estimate

HOLDS, FAILS, LEVEL, UNDECIDED = "holds", "does not hold", "level", "undecided"

FEWEST = 3
"""Seeds or turns from which something is decided."""

ALPHA = 1 - CONFIDENCE
"""Level of a test."""

EQUIVALENT = {"points": 1.0, "times": 1.05}
"""By unit: two sides are level if their difference is at most so many points, or their ratio at most this."""

_NEUTRAL = {"points": 0.0, "times": 1.0}
"""By unit: the boundary of a claim that one side is ahead of the other, and no more."""

_DECIMALS = 6
"""Of recorded figures: machines differ in the last bits of a float64."""


class Interval(NamedTuple):
    """A quantity with its interval, and the range in which it is as the paper says.

    Attributes:
      mean: over the repetitions; of ratios the geometric mean or the median.
      low: lower end of the interval; NaN if there is one repetition, 0 of a ratio that is known from above alone.
      high: upper end; infinite of a ratio that is known from below alone.
      unit: ``points`` (of percent), ``points an evaluation``, ``times`` or ``alpha``.
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
        """``holds`` or ``does not hold`` if the whole interval is on that side of the boundaries.

        Else ``level``, if the claim is that one side is ahead and the interval has nothing but differences that do not
        matter, of at most :data:`EQUIVALENT`: two one-sided tests, each at half of :data:`ALPHA`.
        """
        if self.repetitions < FEWEST:
            return UNDECIDED
        if self.strict and self.low == self.high == self._order:
            return LEVEL
        if self.strict:
            inside = self.low > self.at_least and self.high < self.at_most
            outside = self.high <= self.at_least or self.low >= self.at_most
        else:
            inside = self.low >= self.at_least and self.high <= self.at_most
            outside = self.high < self.at_least or self.low > self.at_most
        return HOLDS if inside else FAILS if outside else LEVEL if self._is_level else UNDECIDED

    @property
    def p(self) -> float:
        """Two-sided p of the nearest boundary: Student's t, of which the interval has the standard error.

        Of the median of turns it is that of a normal with such an interval. Of what is level it is twice the greater of
        the p of the two one-sided tests.
        """
        scale = _scale(self.unit)
        reached = [bound for bound in (self.at_least, self.at_most) if math.isfinite(bound)]
        if self.repetitions < FEWEST or not reached:
            return 1.0
        if self._is_level and self.verdict == LEVEL:
            most = scale(EQUIVALENT[self.unit])
            apart = most - abs(scale(self.mean))
        else:
            apart = min(
                abs(scale(self.mean) - scale(bound)) if bound or scale is float else math.inf for bound in reached
            )
        ends = [end for end in (self.low, self.high) if math.isfinite(end) and (end > 0 or self.unit != "times")]
        half = min((abs(scale(self.mean) - scale(end)) for end in ends), default=math.inf)
        return _two_sided(apart, half, self.repetitions - 1 if self.repeated == "seeds" else math.inf)

    @property
    def _order(self) -> float | None:
        """The boundary of a claim that one side is ahead of the other; None of any other claim."""
        bounds = [bound for bound in (self.at_least, self.at_most) if math.isfinite(bound)]
        return bounds[0] if bounds == [_NEUTRAL.get(self.unit)] else None

    @property
    def _is_level(self) -> bool:
        if self._order is None:
            return False
        most = EQUIVALENT[self.unit]
        least = -most if self.unit == "points" else 1 / most
        return self.low >= least and self.high <= most

    def as_row(self) -> dict[str, Any]:
        """The entry of a record; what is not finite is None."""
        names = ("mean", "low", "high", "at_least", "at_most")
        return {name: _rounded(getattr(self, name)) for name in names} | {"unit": self.unit} | _shared(self)

    def __str__(self) -> str:
        signed = "+.1f" if self.unit.startswith("points") else ".2f"
        ends = f" [{self.low:{signed}}, {self.high:{signed}}]" if math.isfinite(self.low) else ""
        return f"{self.mean:{signed}}{ends} {self.unit}"


class Votes(NamedTuple):
    """A question that each seed answers with yes or no.

    Attributes:
      yes: seeds that are as the paper says.
      repetitions: number of seeds.
      of_all: whether the claim is about all runs, so that one which says no contradicts it; else about most of them.
      repeated: as for :class:`Interval`.
    """

    yes: int
    repetitions: int
    of_all: bool = False
    repeated: str = "seeds"

    @property
    def verdict(self) -> str:
        """By the interval of Clopper and Pearson of the share of yes, on which side of one half it is.

        With a confidence of 95 %, at least six seeds that agree decide.
        """
        if self.of_all and self.repetitions >= FEWEST:
            return HOLDS if self.yes == self.repetitions else FAILS
        share = stats.binomtest(self.yes, self.repetitions).proportion_ci(CONFIDENCE, "exact")
        return HOLDS if share.low > 0.5 else FAILS if share.high < 0.5 else UNDECIDED

    @property
    def p(self) -> float:
        """Two-sided p of equal chances; 0 of a claim about all runs, which is no estimate."""
        return 0.0 if self.of_all else float(stats.binomtest(self.yes, self.repetitions).pvalue)

    def as_row(self) -> dict[str, Any]:
        """The entry of a record."""
        return {"yes": self.yes, "unit": "votes"} | _shared(self)

    def __str__(self) -> str:
        return f"so on {self.yes} of {self.repetitions} seeds"


class Prediction(NamedTuple):
    """Whether a figure that a paper has of one run can be one of ours, by the interval of one more run of ours.

    Attributes:
      mean: over our seeds; of ratios the geometric mean.
      low: lower end of the prediction interval of one run; 0 of a ratio that is known from above alone.
      high: upper end; infinite of a ratio that is known from below alone.
      unit: as for :class:`Interval`.
      repetitions: number of seeds.
      theirs: the paper's figure, in this unit.
      at_least: whether the paper says at least so much, so that more is no contradiction; else at most.
      repeated: as for :class:`Interval`.
    """

    mean: float
    low: float
    high: float
    unit: str
    repetitions: int
    theirs: float
    at_least: bool
    repeated: str = "seeds"

    @property
    def verdict(self) -> str:
        """``does not hold`` if the figure is beyond the interval, on the side on which ours falls short of it.

        Where an end is not known and nothing else speaks for the claim, that is undecided.
        """
        if self.repetitions < FEWEST:
            return UNDECIDED
        if self.high < self.theirs if self.at_least else self.low > self.theirs:
            return FAILS
        falls_short = self.mean < self.theirs if self.at_least else self.mean > self.theirs
        is_open = math.isinf(self.high) if self.at_least else self.unit == "times" and self.low == 0
        return UNDECIDED if falls_short and is_open else HOLDS

    @property
    def p(self) -> float:
        """Two-sided p of the paper's figure among runs of ours, by Student's t; 1 if it is compatible with them."""
        if self.verdict != FAILS:
            return 1.0
        scale, end = _scale(self.unit), self.high if self.at_least else self.low
        apart, half = (abs(scale(figure) - scale(self.mean)) for figure in (self.theirs, end))
        return _two_sided(apart, half, self.repetitions - 1)

    def as_row(self) -> dict[str, Any]:
        """The entry of a record; what is not finite is None."""
        names = ("mean", "low", "high", "theirs")
        return (
            {name: _rounded(getattr(self, name)) for name in names} | {"unit": f"{self.unit} of a run"} | _shared(self)
        )

    def __str__(self) -> str:
        signed = "+.1f" if self.unit == "points" else ".2f"
        ends = f"{self.low:{signed}}, {self.high:{signed}}"
        return f"one run [{ends}] beside {self.theirs:{signed}} {self.unit}"


Part = Interval | Votes | Prediction

Bounded = TypeVar("Bounded", Interval, Prediction)


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


def predicted(values: np.ndarray, unit: str, theirs: float, at_least: bool) -> Prediction:
    """The interval of one more run of ours beside a paper's single one, by Student's t.

    Args:
      values: as for :func:`across`.
      unit: of the figure.
      theirs: the paper's figure, in this unit.
      at_least: whether the paper says at least so much; else at most.
    """
    mean, half = estimate(np.asarray(values, np.float64))
    half *= math.sqrt(len(values) + 1)  # s sqrt(1 + 1/N) in place of s / sqrt(N)
    low, mean, high = (_shown(x, unit) for x in (mean - half, mean, mean + half))
    return Prediction(mean, low, high, unit, len(values), theirs, at_least)


def widened(part: Bounded, half: float) -> Bounded:
    """A ratio times another one of its own, of which the interval has this half width in logarithms."""
    low, high = (math.exp(math.hypot(math.log(end / part.mean), half)) for end in (part.low, part.high))
    return part._replace(low=part.mean / low, high=part.mean * high)


def of_turns(ratios: Sequence[float], *, at_least: float = -math.inf, at_most: float = math.inf) -> Interval:
    """The median of ratios of times taken in turn, and its interval without an assumption on their distribution."""
    ends = stats.quantile_test(ratios, p=0.5).confidence_interval(CONFIDENCE)
    figures = float(np.median(ratios)), float(ends.low), float(ends.high)
    return Interval(*figures, "times", len(ratios), at_least, at_most, repeated="turns")


def combined(verdicts: Iterable[str]) -> str:
    """The verdict on a claim of several parts: one that does not hold decides, then one that is undecided."""
    found = set(verdicts) or {UNDECIDED}
    return next(word for word in (FAILS, UNDECIDED, LEVEL, HOLDS) if word in found)


def chance(parts: Sequence[Part]) -> float:
    """The p of a verdict of several parts.

    That they all hold, or are level, is as likely as the least certain; a figure that is compatible with our runs says
    nothing for a claim, and does not count. That one of them does not is as likely as the most certain of these, times
    the number of parts (Bonferroni). 1 of what is undecided.
    """
    verdict = combined(part.verdict for part in parts)
    if verdict in (HOLDS, LEVEL):
        return max((part.p for part in parts if not isinstance(part, Prediction)), default=1.0)
    failed = [part.p for part in parts if part.verdict == FAILS]
    return min(1.0, len(parts) * min(failed)) if failed else 1.0


def holm(chances: Sequence[float]) -> list[float]:
    """The p of claims that are judged together, corrected for their number (Holm, 1979)."""
    order = np.argsort(chances, kind="stable")
    corrected, highest = [1.0] * len(chances), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[index]))
        corrected[index] = highest
    return corrected


def _scale(unit: str) -> Callable[[float], float]:
    """In which the quantity of a unit is compared."""
    return math.log if unit == "times" else float


def _two_sided(apart: float, half: float, freedom: float) -> float:
    """The p of a distance from a boundary, beside the half width of the interval."""
    if not half or not apart:
        return 1.0 if not apart else 0.0
    return float(2 * stats.t.sf(apart / half * stats.t.ppf(1 - ALPHA / 2, freedom), freedom))


def _shared(part: Part) -> dict[str, Any]:
    return {name: getattr(part, name) for name in ("repetitions", "repeated", "verdict")}


def _shown(value: float, unit: str) -> float:
    return 100 * value if unit.startswith("points") else math.exp(value) if unit == "times" else value


def _rounded(figure: float) -> float | None:
    return round(figure, _DECIMALS) if math.isfinite(figure) else None
