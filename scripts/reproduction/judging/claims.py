"""A claim of a paper, the question that decides it, and the answer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reproduction.judging.margins import Part, chance, combined
from reproduction.judging.outcome import Outcome
from theorem_checks.statements import Check

Where = Mapping[str, Any]
"""A part of a sweep: the value of some of its axes."""


class Answer(NamedTuple):
    """The answer to a question.

    Attributes:
      parts: the comparisons that decide it; the claim holds if all do.
      ours: our figures, as text.
      shows_intervals: whether the text has the intervals already.
      most_shown: how many of the parts, the first ones, the text is to have; default all.
    """

    parts: tuple[Part, ...]
    ours: str
    shows_intervals: bool = False
    most_shown: int | None = None

    @property
    def shown(self) -> tuple[Part, ...]:
        """The parts that the text has."""
        return self.parts[: self.most_shown]

    @property
    def text(self) -> str:
        """Our figures with the intervals."""
        if self.shows_intervals:
            return self.ours
        return "; ".join(filter(None, [self.ours, ", ".join(map(str, self.shown))]))

    @property
    def verdict(self) -> str:
        """What follows from the parts."""
        return combined(part.verdict for part in self.parts)

    @property
    def p(self) -> float:
        """How likely the verdict is by chance; 1 if nothing is decided."""
        return chance(self.parts)


Question = Callable[[Outcome], Answer]
"""A pure function of an outcome.

It raises :class:`~reproduction.judging.outcome.MissingError` if that lacks what is needed.
"""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper about an experiment.

    The published record identifies a claim by ``paper``, ``place`` and ``text``: a reworded claim loses its result.

    Attributes:
      paper: short name of the paper.
      place: figure or table.
      text: the statement, in our words.
      theirs: the paper's figure, or empty if it gives none.
      target: name of the target that judges it, beside the targets that are another setting of that one; empty if none
        can be run.
      question: decides the claim from the target's outcome.
      reason: why no target can be run.
      check: of a statement that a calculation decides, in place of a target.
      instead: of the paper's data or network, what stands in their place in this claim alone.
    """

    paper: str
    place: str
    text: str
    theirs: str
    target: str = ""
    question: Question | None = None
    reason: str = ""
    check: Check | None = None
    instead: str = ""


def method(label: str, **where: Any) -> Where:
    """The cells of one method; keywords restrict other axes, with ``__`` for a dot (``partition__beta=0.1``)."""
    return {"method": label} | restricted(where)


def restricted(where: Mapping[str, Any]) -> dict[str, Any]:
    """Values of axes from keyword arguments, in which ``__`` stands for a dot."""
    return {axis.replace("__", "."): value for axis, value in where.items()}
