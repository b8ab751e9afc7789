"""How many seeds would decide what is undecided, if their mean and spread stay as they are."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from reproduction.judging.margins import ALPHA, FAILS, FEWEST, HOLDS, UNDECIDED, Interval, Part, Votes

MOST = 1000
"""Of seeds that are tried."""


def deciding(parts: Sequence[Part]) -> float:
    """The seeds, or turns, that decide a claim of these parts; infinite if a run must go on instead of them.

    One part that comes not to hold is enough; else all of them must be decided. :data:`MOST` stands for more, too.
    """
    found = [_of(part) for part in parts if part.verdict == UNDECIDED]
    contrary = [number for number, verdict in found if verdict == FAILS]
    return min(contrary) if contrary else max((number for number, _ in found), default=0.0)


def _of(part: Part) -> tuple[float, str]:
    """The number that decides a part, and its verdict then."""
    if isinstance(part, Votes):
        return _of_votes(part)
    if not isinstance(part, Interval) or math.isinf(part.high) or (part.unit == "times" and part.low == 0):
        return math.inf, UNDECIDED
    if math.isnan(part.low):
        return FEWEST, UNDECIDED
    to, back = (math.log, math.exp) if part.unit == "times" else (float, float)
    counts, quantiles = _quantiles()
    mean, own = to(part.mean), part.repetitions
    spread = (to(part.high) - to(part.low)) / 2 * math.sqrt(own) / quantiles[own - 2]
    for count, half in zip(counts, spread * quantiles / np.sqrt(counts), strict=True):
        longer = part._replace(repetitions=int(count), low=back(mean - half), high=back(mean + half))
        if count > own and longer.verdict != UNDECIDED:
            return float(count), longer.verdict
    return float(MOST), UNDECIDED


def _of_votes(part: Votes) -> tuple[float, str]:
    share = part.yes / part.repetitions
    counts = np.arange(part.repetitions + 1, MOST + 1)
    yes = np.rint(share * counts)
    side = np.where(share > 0.5, stats.binom.sf(yes - 1, counts, 0.5), stats.binom.cdf(yes, counts, 0.5))
    decided = np.flatnonzero(side < ALPHA / 2)
    return float(counts[decided[0]]) if len(decided) else float(MOST), HOLDS if share > 0.5 else FAILS


@functools.cache
def _quantiles() -> tuple[np.ndarray, np.ndarray]:
    """Numbers of seeds from 2 on, and Student's t for each."""
    counts = np.arange(2, MOST + 1)
    return counts, stats.t.ppf(1 - ALPHA / 2, counts - 1)
