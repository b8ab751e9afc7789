"""Questions to the outcome of a sweep, from which claims are decided.

Each function returns a :data:`~reproduction.claims.Question`. ``subject`` and ``other`` are parts of the sweep;
``where`` restricts the whole question to a part. Accuracies are shares between 0 and 1.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.sweep.grid import METHOD
from reproduction import timing
from reproduction.claims import Answer, Question, Where
from reproduction.names import percent, written
from reproduction.outcome import DIVERGED, NOT_MEASURED, MissingError, Outcome

GRID = 0.05
"""If not both methods reach a paper's target accuracy, the highest multiple of this that both reach replaces it."""

MAX_SHOWN = 4
"""Number of answers that :func:`every` lists; if there are more, it lists those that contradict the paper."""


def faster(subject: Where, other: Where, accuracy: float, at_most: float = 1.0) -> Question:
    """Whether ``subject`` reaches an accuracy in at most ``at_most`` times the rounds of ``other``."""

    def question(outcome: Outcome) -> Answer:
        own, theirs = _converged(outcome, subject), outcome.at(other)
        target = _reachable(accuracy, [own, theirs])
        ratio = own.first(target) / theirs.first(target)
        rounds = f"{own.first(target):.0f} against {theirs.first(target):.0f} rounds to {percent(target, 0)}"
        return Answer(ratio <= at_most, f"{ratio:.2f} ({rounds})")

    return question


def first_to(axis: str, label: Any, accuracy: float, where: Where, beside: Sequence[Any] = ()) -> Question:
    """Whether one value of an axis reaches an accuracy before all others; those in ``beside`` are not compared."""

    def question(outcome: Outcome) -> Answer:
        part = outcome.at(where)
        own = _converged(part, {axis: label})
        others = {other: part.at({axis: other}) for other in part.labels(axis) if other not in (label, *beside)}
        best = max(_required(others).values(), key=lambda other: other.best())
        target = _reachable(accuracy, [own, best])
        rounds = {other: result.first(target) for other, result in others.items()}
        nearest = min(rounds, key=lambda other: rounds[other])
        mine, next_best = own.first(target), f"{written(axis, nearest)} {_rounds(rounds[nearest])}"
        return Answer(mine < rounds[nearest], f"{_rounds(mine)}, {next_best}, to {percent(target, 0)}")

    return question


def highest(axis: str, label: Any, where: Where, beside: Sequence[Any] = (), within: float = 0.0) -> Question:
    """Whether one value of an axis ends above all others minus ``within``; those in ``beside`` are not compared."""

    def question(outcome: Outcome) -> Answer:
        part = outcome.at(where)
        own = _converged(part, {axis: label}).level()
        levels = {name: part.at({axis: name}).level() for name in part.labels(axis) if name not in (label, *beside)}
        nearest = max(_required(levels), key=lambda name: levels[name])
        ours = f"{percent(own)}, {written(axis, nearest)} {percent(levels[nearest])}"
        return Answer(own > levels[nearest] - within, ours)

    return question


def ahead(subject: Where, other: Where, by: float = 0.0, at_most: float = math.inf) -> Question:
    """Whether ``subject`` ends above ``other`` by at least ``by`` and by no more than ``at_most``."""

    def question(outcome: Outcome) -> Answer:
        gap = _converged(outcome, subject).level() - outcome.at(other).level()
        return Answer(by <= gap <= at_most, f"{_points(gap)} points")

    return question


def wider(subject: Where, other: Where, more: Where, less: Where) -> Question:
    """Whether the lead of ``subject`` over ``other`` is larger in the part ``more`` than in the part ``less``."""

    def question(outcome: Outcome) -> Answer:
        gaps = [
            _converged(outcome.at(part), subject).level() - outcome.at(part).at(other).level() for part in (more, less)
        ]
        return Answer(gaps[0] > gaps[1], f"{_points(gaps[0])} against {_points(gaps[1])} points")

    return question


def rising(axis: str, labels: Sequence[Any], where: Where, within: float = 0.0) -> Question:
    """Whether the final accuracy rises along these values of an axis, except for falls of at most ``within``."""

    def question(outcome: Outcome) -> Answer:
        levels = [outcome.at({**where, axis: label}).level() for label in labels]
        holds = all(b >= a - within for a, b in itertools.pairwise(levels))
        return Answer(holds, _listed(axis, labels, levels))

    return question


def sooner(axis: str, labels: Sequence[Any], where: Where) -> Question:
    """Whether learning becomes faster along these values of an axis, by the mean accuracy over the run."""

    def question(outcome: Outcome) -> Answer:
        means = [float(np.nan_to_num(outcome.at({**where, axis: label}).curve()[1]).mean()) for label in labels]
        ours = _listed(axis, labels, means)
        return Answer(all(b >= a for a, b in itertools.pairwise(means)), f"mean over the run: {ours}")

    return question


def converges(subject: Where, guessing: float, wanted: bool = True) -> Question:
    """Whether ``subject`` converges, or does not if ``wanted`` is False.

    It converges if it ends at 90 % of its best accuracy or more, and at twice the accuracy of guessing or more.
    """

    def question(outcome: Outcome) -> Answer:
        own = outcome.at(subject)
        steady = not own.diverged() and own.level() >= max(0.9 * own.best(), 2 * guessing)
        return Answer(steady == wanted, f"ends at {percent(own.level())}, best {percent(own.best())}")

    return question


def steadier(subject: Where, other: Where) -> Question:
    """Whether the accuracy of ``subject`` changes less between evaluations, in the second half of the run."""

    def question(outcome: Outcome) -> Answer:
        own, theirs = _converged(outcome, subject).swing(), outcome.at(other).swing()
        return Answer(own <= theirs, f"{100 * own:.1f} against {100 * theirs:.1f} points an evaluation")

    return question


def quicker(label: str, other: str, accuracy: float, at_most: float) -> Question:
    """Whether a method reaches an accuracy in at most ``at_most`` times the client time of another method."""

    def question(outcome: Outcome) -> Answer:
        own, theirs = _converged(outcome, {METHOD: label}), outcome.at({METHOD: other})
        target = _reachable(accuracy, [own, theirs])
        rounds = own.first(target) / theirs.first(target)
        part = rounds * timing.ratio(outcome.folder, label, other)
        return Answer(part <= at_most, f"{part:.2f} of its time to {percent(target, 0)}")

    return question


def costlier(label: str, other: str, at_least: float, at_most: float = math.inf) -> Question:
    """Whether the client time a round of a method is this multiple of that of another method."""

    def question(outcome: Outcome) -> Answer:
        times = timing.ratio(outcome.folder, label, other)
        return Answer(at_least <= times <= at_most, f"{times:.2f} times")

    return question


def every(*questions: Question) -> Question:
    """Whether all of these hold."""

    def question(outcome: Outcome) -> Answer:
        answers = [own(outcome) for own in questions]
        wrong = [answer.ours for answer in answers if not answer.holds]
        shown = wrong if len(answers) > MAX_SHOWN else [answer.ours for answer in answers]
        more = ["..."] if len(shown) > MAX_SHOWN else []
        ours = "; ".join([*shown[:MAX_SHOWN], *more])
        count = f"{len(answers) - len(wrong)} of {len(answers)}"
        return Answer(not wrong, f"{count}{', but ' if shown is wrong and wrong else ': ' if ours else ''}{ours}")

    return question


def _converged(outcome: Outcome, where: Where) -> Outcome:
    """The part that a claim speaks well of; if it diverged, so did the claim."""
    part = outcome.at(where)
    if part.diverged():
        raise MissingError(DIVERGED)
    return part


def _required(values: Mapping[Any, Any]) -> Mapping[Any, Any]:
    if not values:
        raise MissingError(NOT_MEASURED)
    return values


def _reachable(accuracy: float, outcomes: Sequence[Outcome]) -> float:
    """The paper's target accuracy, or the highest multiple of :data:`GRID` below it that all outcomes reach."""
    reached = min(outcome.best() for outcome in outcomes)
    below = GRID * math.floor(reached / GRID + 1e-9)
    if below <= 0:
        raise MissingError(NOT_MEASURED)
    return accuracy if reached >= accuracy else below


def _rounds(number: float) -> str:
    return f"round {number:.0f}" if math.isfinite(number) else "never"


def _points(gap: float) -> str:
    return f"{100 * gap:+.1f}"


def _listed(axis: str, labels: Sequence[Any], shares: Sequence[float]) -> str:
    return ", ".join(f"{written(axis, label)} {percent(x)}" for label, x in zip(labels, shares, strict=True))
