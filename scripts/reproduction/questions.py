"""Claims, and the questions that can be put to a finished sweep; each is a small pure function of its outcome."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.axes import METHOD
from reproduction import timing
from reproduction.names import percent, written
from reproduction.outcome import MissingError, Outcome

GRID = 0.05
"""Where a paper's target accuracy is not reached by both, the highest multiple of this that is takes its place."""

SHOWN = 4
"""Answers that are told of a claim about several settings; of more, those that are not as the paper says."""

NOT_MEASURED = "not measured"
"""The verdict on a claim whose sweep has not run."""

Where = Mapping[str, Any]
"""The value of some axes: which part of a sweep a claim is about."""


class Answer(NamedTuple):
    """What came out: whether it is as the paper says, and our figures."""

    holds: bool
    ours: str


Question = Callable[[Outcome], Answer]


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper says about an experiment.

    Attributes:
      paper: whose it is.
      place: where it is said.
      text: what is said, in our words.
      theirs: the paper's figure, or empty where it gives none.
      target: the sweep that it is judged by; empty where none can be run.
      question: put to its outcome.
      reason: why nothing can be run.
    """

    paper: str
    place: str
    text: str
    theirs: str
    target: str = ""
    question: Question | None = None
    reason: str = ""


class Verdict(NamedTuple):
    """A claim with what became of it: ``yes``, ``no``, ``diverged``, ``not measured`` or ``cannot be run``."""

    claim: Claim
    holds: str
    ours: str


def judge(claim: Claim, outcome: Outcome | None) -> Verdict:
    """Answers a claim; what is missing is a verdict, not an error.

    Args:
      claim: what is said.
      outcome: of the sweep that it is judged by, or None if that has not run.
    """
    if claim.question is None:
        return Verdict(claim, "cannot be run", claim.reason)
    if outcome is None:
        return Verdict(claim, NOT_MEASURED, "")
    try:
        holds, ours = claim.question(outcome)
    except MissingError as error:
        return Verdict(claim, str(error), "")
    return Verdict(claim, "yes" if holds else "no", ours)


def faster(subject: Where, other: Where, accuracy: float, at_most: float = 1.0) -> Question:
    """Does one get to an accuracy in at most so large a part of the other's rounds?"""

    def question(outcome: Outcome) -> Answer:
        own, theirs = _alive(outcome, subject), outcome.at(other)
        target = _target(accuracy, [own, theirs])
        ratio = own.first(target) / theirs.first(target)
        rounds = f"{own.first(target):.0f} against {theirs.first(target):.0f} rounds to {percent(target, 0)}"
        return Answer(ratio <= at_most, f"{ratio:.2f} ({rounds})")

    return question


def first_to(axis: str, label: Any, accuracy: float, where: Where, beside: Sequence[Any] = ()) -> Question:
    """Does one of an axis get to an accuracy before all others, those ``beside`` it left out?"""

    def question(outcome: Outcome) -> Answer:
        part = outcome.at(where)
        own = _alive(part, {axis: label})
        others = {other: part.at({axis: other}) for other in part.labels(axis) if other not in (label, *beside)}
        best = max(_required(others).values(), key=lambda other: other.best())
        target = _target(accuracy, [own, best])
        rounds = {other: found.first(target) for other, found in others.items()}
        nearest = min(rounds, key=lambda other: rounds[other])
        mine, next_best = own.first(target), f"{written(axis, nearest)} {_rounds(rounds[nearest])}"
        return Answer(mine < rounds[nearest], f"{_rounds(mine)}, {next_best}, to {percent(target, 0)}")

    return question


def highest(axis: str, label: Any, where: Where, beside: Sequence[Any] = (), within: float = 0.0) -> Question:
    """Does one of an axis end above all others, or less than so far below, those ``beside`` it left out?"""

    def question(outcome: Outcome) -> Answer:
        part = outcome.at(where)
        own = _alive(part, {axis: label}).level()
        levels = {name: part.at({axis: name}).level() for name in part.labels(axis) if name not in (label, *beside)}
        nearest = max(_required(levels), key=lambda name: levels[name])
        ours = f"{percent(own)}, {written(axis, nearest)} {percent(levels[nearest])}"
        return Answer(own > levels[nearest] - within, ours)

    return question


def ahead(subject: Where, other: Where, by: float = 0.0, at_most: float = math.inf) -> Question:
    """Does one end above another by at least, and by at most, so much?"""

    def question(outcome: Outcome) -> Answer:
        gap = _alive(outcome, subject).level() - outcome.at(other).level()
        return Answer(by <= gap <= at_most, f"{_points(gap)} points")

    return question


def wider(subject: Where, other: Where, more: Where, less: Where) -> Question:
    """Is one further ahead of another in one part of the sweep than in another part?"""

    def question(outcome: Outcome) -> Answer:
        gaps = [_alive(outcome.at(part), subject).level() - outcome.at(part).at(other).level() for part in (more, less)]
        return Answer(gaps[0] > gaps[1], f"{_points(gaps[0])} against {_points(gaps[1])} points")

    return question


def rising(axis: str, labels: Sequence[Any], where: Where, within: float = 0.0) -> Question:
    """Do these end one above the other, in this order, falls of so much aside?"""

    def question(outcome: Outcome) -> Answer:
        levels = [outcome.at({**where, axis: label}).level() for label in labels]
        holds = all(b >= a - within for a, b in itertools.pairwise(levels))
        return Answer(holds, _listed(axis, labels, levels))

    return question


def sooner(axis: str, labels: Sequence[Any], where: Where) -> Question:
    """Do these learn the faster the later they are in this order, by the mean accuracy over the run?"""

    def question(outcome: Outcome) -> Answer:
        means = [float(np.nan_to_num(outcome.at({**where, axis: label}).curve()[1]).mean()) for label in labels]
        ours = _listed(axis, labels, means)
        return Answer(all(b >= a for a, b in itertools.pairwise(means)), f"mean over the run: {ours}")

    return question


def converges(subject: Where, guessing: float, wanted: bool = True) -> Question:
    """Does one end within a tenth of its own best, and that at twice the accuracy of guessing or more (or not)?"""

    def question(outcome: Outcome) -> Answer:
        own = outcome.at(subject)
        steady = not own.diverged() and own.level() >= max(0.9 * own.best(), 2 * guessing)
        return Answer(steady == wanted, f"ends at {percent(own.level())}, best {percent(own.best())}")

    return question


def steadier(subject: Where, other: Where) -> Question:
    """Does one swing less from evaluation to evaluation, in the second half of the run?"""

    def question(outcome: Outcome) -> Answer:
        own, theirs = _alive(outcome, subject).swing(), outcome.at(other).swing()
        return Answer(own <= theirs, f"{100 * own:.1f} against {100 * theirs:.1f} points an evaluation")

    return question


def quicker(method: str, other: str, accuracy: float, at_most: float) -> Question:
    """Do the clients of one compute for at most so large a part of the other's time to get to an accuracy?"""

    def question(outcome: Outcome) -> Answer:
        own, theirs = _alive(outcome, {METHOD: method}), outcome.at({METHOD: other})
        target = _target(accuracy, [own, theirs])
        rounds = own.first(target) / theirs.first(target)
        part = rounds * timing.ratio(outcome.folder, method, other)
        return Answer(part <= at_most, f"{part:.2f} of its time to {percent(target, 0)}")

    return question


def costlier(method: str, other: str, at_least: float, at_most: float = math.inf) -> Question:
    """Is a round of one's clients so many times as long as one of the other's?"""

    def question(outcome: Outcome) -> Answer:
        times = timing.ratio(outcome.folder, method, other)
        return Answer(at_least <= times <= at_most, f"{times:.2f} times")

    return question


def every(*questions: Question) -> Question:
    """Do all of these hold?"""

    def question(outcome: Outcome) -> Answer:
        answers = [own(outcome) for own in questions]
        wrong = [answer.ours for answer in answers if not answer.holds]
        shown = wrong if len(answers) > SHOWN else [answer.ours for answer in answers]
        more = ["..."] if len(shown) > SHOWN else []
        ours = "; ".join([*shown[:SHOWN], *more])
        count = f"{len(answers) - len(wrong)} of {len(answers)}"
        return Answer(not wrong, f"{count}{', but ' if shown is wrong and wrong else ': ' if ours else ''}{ours}")

    return question


def _alive(outcome: Outcome, where: Where) -> Outcome:
    """The part that a claim praises."""
    part = outcome.at(where)
    if part.diverged():
        raise MissingError("diverged")
    return part


def _required(found: dict[Any, Any]) -> dict[Any, Any]:
    if not found:
        raise MissingError("not measured")
    return found


def _target(accuracy: float, outcomes: Sequence[Outcome]) -> float:
    """The paper's, or the highest multiple of :data:`GRID` below it that all reach."""
    reached = min(outcome.best() for outcome in outcomes)
    below = GRID * math.floor(reached / GRID + 1e-9)
    if below <= 0:
        raise MissingError("not measured")
    return accuracy if reached >= accuracy else below


def _rounds(number: float) -> str:
    return f"round {number:.0f}" if math.isfinite(number) else "never"


def _points(gap: float) -> str:
    return f"{100 * gap:+.1f}"


def _listed(axis: str, labels: Sequence[Any], shares: Sequence[float]) -> str:
    return ", ".join(f"{written(axis, label)} {percent(x)}" for label, x in zip(labels, shares, strict=True))
