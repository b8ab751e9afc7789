"""Paired differences over the seeds: what a method gains over another one on the same clients, with intervals."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from reproduction.names import written
from reproduction.outcome import NOT_MEASURED, TAIL, MissingError, Outcome
from reproduction.target import Target

LEVEL = 0.95
"""Of the intervals."""


def interval(differences: np.ndarray) -> tuple[float, float]:
    """The mean of paired differences ``[N]``, N >= 2, and half the width of its interval by Student's t."""
    half = stats.t.ppf((1 + LEVEL) / 2, len(differences) - 1) * stats.sem(differences)
    return float(np.mean(differences)), float(half)


def levels(outcome: Outcome, name: str) -> np.ndarray:
    """Mean of a metric over the last :data:`~reproduction.outcome.TAIL` evaluations, of each seed in order.

    Raises:
      MissingError: a cell has not run to the end or lacks the metric.
    """
    cells = sorted(outcome.complete(), key=lambda cell: cell.values["seed"])
    if len(cells) < len(outcome.cells) or any(name not in cell.history for cell in cells):
        raise MissingError(NOT_MEASURED)
    return np.array([cell.history[name][-TAIL:].mean() for cell in cells])


def table(target: Target, outcome: Outcome, names: Sequence[str]) -> list[str]:
    """Lines of a table in percentage points: each method's mean over the seeds, and its gain over the first method.

    Args:
      target: whose ``lines`` are the methods.
      outcome: of the target.
      names: metrics that are shares in [0, 1].

    Raises:
      MissingError: something has not been measured, or on one seed only.
    """
    methods = outcome.labels(target.lines)
    seeds = outcome.labels("seed")
    if len(seeds) < 2:
        raise MissingError(NOT_MEASURED)
    rows = [f"| % ({len(seeds)} seeds) | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for method in methods:
        cells = []
        for name in names:
            own, first = (levels(outcome.at({target.lines: label}), name) for label in (method, methods[0]))
            gain, half = interval(100 * (own - first))
            against = "" if method == methods[0] else f" ({gain:+.1f} \N{PLUS-MINUS SIGN} {half:.1f})"
            cells.append(f"{100 * own.mean():.1f}{against}")
        rows.append(f"| {written(target.lines, method)} | {' | '.join(cells)} |")
    return rows
