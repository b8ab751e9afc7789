"""A claim of a paper, the question that decides it, and the verdict."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reproduction.outcome import NOT_MEASURED, MissingError, Outcome

Where = Mapping[str, Any]
"""A part of a sweep: the value of some of its axes."""


class Answer(NamedTuple):
    """The answer to a question.

    Attributes:
      holds: whether our results are as the paper says.
      ours: our figures, as text.
    """

    holds: bool
    ours: str


Question = Callable[[Outcome], Answer]
"""A pure function of a sweep's outcome; raises :class:`MissingError` if that lacks what is needed."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper about an experiment.

    The published record identifies a claim by ``paper``, ``place`` and ``text``: a reworded claim loses its result.

    Attributes:
      paper: short name of the paper.
      place: figure or table.
      text: the statement, in our words.
      theirs: the paper's figure, or empty if it gives none.
      target: name of the target that judges it; empty if none can be run.
      question: decides the claim from the target's outcome.
      reason: why no target can be run.
    """

    paper: str
    place: str
    text: str
    theirs: str
    target: str = ""
    question: Question | None = None
    reason: str = ""


class Verdict(NamedTuple):
    """The result for a claim.

    Attributes:
      claim: what was judged.
      holds: ``yes``, ``no``, ``diverged``, ``not measured`` or ``cannot be run``.
      ours: our figures, or why there are none.
    """

    claim: Claim
    holds: str
    ours: str


def judge(claim: Claim, outcome: Outcome | None) -> Verdict:
    """Decides a claim; missing results give a verdict and no error.

    Args:
      claim: what to judge.
      outcome: of the claim's target, or None if that has not been run.
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


def method(label: str, **where: Any) -> Where:
    """The cells of one method; keywords restrict other axes, with ``__`` for a dot (``partition__beta=0.1``)."""
    return {"method": label} | restricted(where)


def restricted(where: Mapping[str, Any]) -> dict[str, Any]:
    """Values of axes from keyword arguments, in which ``__`` stands for a dot."""
    return {axis.replace("__", "."): value for axis, value in where.items()}
