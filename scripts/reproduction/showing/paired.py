"""Paired differences over the seeds: what a method gains over another one on the same clients, with intervals."""

from collections.abc import Sequence

import numpy as np

from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction.judging.outcome import MissingError, Outcome
from reproduction.names import written
from reproduction.targets.target import Target

TAIL = 5
"""Evaluations over which metrics are averaged."""


def levels(outcome: Outcome, name: str) -> np.ndarray:
    """Mean of a metric over the last :data:`~reproduction.showing.paired.TAIL` evaluations, of each seed in order.

    Raises:
      MissingError: a cell has not run to the end or lacks the metric.
    """
    return np.array([_running(cell, name)[-1] for cell in _seeds(outcome, name)])


def when_as_accurate(outcome: Outcome, accuracy: np.ndarray, name: str) -> np.ndarray:
    """A metric at the first evaluation at which the test accuracy, both as running means, is that of another method.

    Args:
      outcome: of one method.
      accuracy: test accuracy of the other method at the end, of each seed in order.
      name: of the metric.

    Raises:
      MissingError: a cell never has that test accuracy, has not run to the end or lacks the metric.
    """
    found = []
    for cell, wanted in zip(_seeds(outcome, name), accuracy, strict=True):
        reached = np.flatnonzero(_running(cell, "test_accuracy") >= wanted)
        if not reached.size:
            raise MissingError("not measured")
        found.append(_running(cell, name)[reached[0]])
    return np.array(found)


def table(target: Target, outcome: Outcome) -> list[str]:
    """Lines of tables in percentage points: each method's mean over the seeds, and its gain over the first method.

    The second table has the metrics at the first method's final test accuracy, for methods that reach it: what remains
    of the gain is not that of faster training.

    Args:
      target: whose ``lines`` are the methods and whose ``paired`` are the metrics, shares in [0, 1].
      outcome: of the target.

    Raises:
      MissingError: something has not been measured, or on one seed only.
    """
    first, *others = outcome.labels(target.lines)
    if len(outcome.labels("seed")) < 2:
        raise MissingError("not measured")
    base = {name: levels(outcome.at({target.lines: first}), name) for name in ("test_accuracy", *target.paired)}
    heads = [f"| % ({len(base['test_accuracy'])} seeds) | {' | '.join(target.paired)} |"]
    heads.append(f"| --- |{' --- |' * len(target.paired)}")
    final = [_row(written(target.lines, first), [f"{100 * base[name].mean():.1f}" for name in target.paired])]
    equal = list(final)
    for method in others:
        part, label = outcome.at({target.lines: method}), written(target.lines, method)
        final.append(_row(label, [_gain(levels(part, name), base[name]) for name in target.paired]))
        try:
            at_equal = [when_as_accurate(part, base["test_accuracy"], name) for name in target.paired]
        except MissingError:
            continue
        pairs = zip(at_equal, target.paired, strict=True)
        equal.append(_row(label, [_gain(values, base[name]) for values, name in pairs]))
    about = f"At the test accuracy that {written(target.lines, first)} has at the end:"
    return [*heads, *final, "", about, "", *heads, *equal]


def _seeds(outcome: Outcome, name: str) -> list[Cell]:
    """The cells by seed, all of which have run to the end and have the metric."""
    cells = sorted(outcome.complete(), key=lambda cell: cell.values["seed"])
    if len(cells) < len(outcome.cells) or any(name not in cell.history for cell in cells):
        raise MissingError("not measured")
    return cells


def _running(cell: Cell, name: str) -> np.ndarray:
    """Means over :data:`~reproduction.showing.paired.TAIL` evaluations."""
    return np.convolve(cell.history[name], np.full(TAIL, 1 / TAIL), mode="valid")


def _gain(own: np.ndarray, other: np.ndarray) -> str:
    mean, half = estimate(100 * (own - other))
    return f"{100 * own.mean():.1f} ({mean:+.1f} \N{PLUS-MINUS SIGN} {half:.1f})"


def _row(label: str, cells: Sequence[str]) -> str:
    return f"| {label} | {' | '.join(cells)} |"
