"""What the questions share: quantities of several parts on equal seeds, and what a divergence means for a claim."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.sweep.outcome_table import COMPLETE, Cell
from fedjax_drag.simulation.criterion import ROUNDING
from reproduction.judging.claims import Answer, Question, Where
from reproduction.judging.margins import FAILS, FEWEST, HOLDS, LEVEL, UNDECIDED, Bounded, Interval, Part, Votes
from reproduction.judging.outcome import DIVERGED, MissingError, Outcome, best, first
from reproduction.names import percent, written

Compared = Callable[[Any, np.ndarray, np.ndarray], Interval]
"""How a quantity of the subject ``[seeds]`` compares with that of the other of a name."""

GRID = 0.05
"""Steps of the accuracies that replace a paper's target which is not reached."""


def paired(*sides: Mapping[int, Any]) -> list[np.ndarray]:
    """The values of each side ``[N, ...]`` on the seeds that all sides have, in order.

    Raises:
      MissingError: there is no such seed.
    """
    seeds = sorted(set(sides[0]).intersection(*sides))
    if not seeds:
        raise MissingError("no seed in common")
    return [np.array([side[seed] for seed in seeds]) for side in sides]


def measured(parts: Sequence[Outcome], quantity: Callable[[Cell], float]) -> list[np.ndarray]:
    """A quantity of each part, on the seeds that all parts have."""
    return paired(*(part.by_seed(quantity) for part in parts))


class RunnerUp(NamedTuple):
    """The other that decides whether the subject is ahead of all.

    Attributes:
      name: of the other.
      own: a quantity of the subject, ``[seeds]``.
      theirs: that of the other on equal seeds.
      parts: the comparisons with all others that ran on enough seeds, this one first.
      rank: ``"best of N others "`` if it is the :func:`strongest`, else ``"of N others "``; empty if there is
        one.
      foremost: the name of the :func:`strongest`.
      missing: the others that ran on fewer seeds of the subject than something is decided from.
    """

    name: Any
    own: np.ndarray
    theirs: np.ndarray
    parts: tuple[Part, ...]
    rank: str
    foremost: Any
    missing: Sequence[Any]

    def decides(self, ours: str) -> Answer:
        """The answer to whether the subject is ahead of all others, which one that is missing may still deny.

        Raises:
          MissingError: no other is ahead of it, and one is missing.
        """
        answer = Answer(self.parts, ours, most_shown=1)
        if self.missing and answer.verdict in (HOLDS, LEVEL):
            raise MissingError(f"{answer.text}; not measured: {', '.join(map(str, self.missing))}")
        return answer


def runner_up(
    own: Outcome, others: Mapping[Any, Outcome], quantity: Callable[[Cell], float], compared: Compared
) -> RunnerUp:
    """The other that decides whether ``own`` is ahead of all.

    That is one which is ahead of it, else one of which that is undecided, else one that is level with it, else any; of
    several the :func:`strongest`.

    Args:
      own: the subject.
      others: by name.
      quantity: higher is better.
      compared: from the name of an other, the quantity of the subject and that of the other on equal seeds to whether
        the subject is ahead.

    Raises:
      MissingError: no other ran on a seed of ``own``.
    """
    found = _on_equal_seeds(own, others, quantity)
    parts = {name: compared(name, *sides) for name, sides in found.items()}

    def against(name: Any) -> int:
        enough = parts[name].repetitions >= FEWEST
        return (HOLDS, LEVEL, UNDECIDED, FAILS).index(parts[name].verdict) if enough else 0

    decisive = max(found, key=lambda name: (against(name), _lead(*found[name])))
    foremost = _foremost(found)
    rank = f"{'best of' if decisive == foremost else 'of'} {len(found)} others " if len(found) > 1 else ""
    missing = [name for name in others if name not in found or parts[name].repetitions < FEWEST]
    beside = [part for name, part in parts.items() if name != decisive and part.repetitions >= FEWEST]
    mine, theirs = found[decisive]
    return RunnerUp(decisive, mine, theirs, (parts[decisive], *beside), rank, foremost, missing)


def strongest(own: Outcome, others: Mapping[Any, Outcome], quantity: Callable[[Cell], float]) -> Any:
    """The name of the other with the highest mean of a quantity.

    Seeds differ in difficulty: of others that ran on different seeds, the means of the differences to ``own`` count.

    Raises:
      MissingError: no other ran on a seed of ``own``.
    """
    return _foremost(_on_equal_seeds(own, others, quantity))


def _foremost(found: Mapping[Any, Sequence[np.ndarray]]) -> Any:
    return max(found, key=lambda name: _lead(*found[name]))


def _lead(own: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.mean(theirs - own))


def _on_equal_seeds(
    own: Outcome, others: Mapping[Any, Outcome], quantity: Callable[[Cell], float]
) -> dict[Any, list[np.ndarray]]:
    """By the name of each other that ran on a seed of ``own``, the quantity of ``own`` and of it.

    Raises:
      MissingError: there is none.
    """
    mine, found = own.by_seed(quantity), {}
    for name, other in others.items():
        try:
            found[name] = paired(mine, other.by_seed(quantity))
        except MissingError:  # not run, or not on these seeds
            continue
    if not found:
        raise MissingError("nothing to compare with")
    return found


def others_of(part: Outcome, axis: str, label: Any, beside: Sequence[Any]) -> dict[Any, Outcome]:
    """The cells by the other values of an axis, without those ``beside``; none of a value that has not run."""
    values = dict.fromkeys([*part.wanted.get(axis, ()), *part.labels(axis)])
    return {name: part.at({axis: name}) for name in values if name not in (label, *beside)}


def reachable(accuracy: float, parts: Sequence[Outcome]) -> float:
    """The paper's target accuracy if some part reaches it on each seed, else one that all seeds of all parts reach.

    The latter is the highest such multiple of :data:`GRID`.

    Raises:
      MissingError: there is none.
    """
    tops = measured(parts, best)
    if np.max(tops, axis=0).min() >= accuracy - ROUNDING:
        return accuracy
    below = GRID * math.floor((np.min(tops) + ROUNDING) / GRID)
    if below <= 0:
        raise MissingError("no accuracy that all seeds reach")
    return below


def aim(target: float, accuracy: float) -> str:
    """An accuracy as text, and why it stands in the place of the paper's."""
    instead = "" if target == accuracy else f", as on some seed neither reaches {percent(accuracy, 0)}"
    return f"{percent(target, 0)}{instead}"


def first_round(accuracy: float, *parts: Outcome) -> Callable[[Cell], float]:
    """The first round at which a run has an accuracy; one that never does counts with the round after the last.

    Args:
      accuracy: share between 0 and 1.
      parts: all that are compared; the longest of their runs has the last round.
    """
    rounds = [cell.history["round"] for part in parts for cell in part.cells if cell.status in COMPLETE]
    after = max(float(found[-1] + np.diff(found, prepend=0)[-1]) for found in rounds)
    return lambda cell: min(first(cell, accuracy), after)


def rounds_to(accuracy: float, parts: Sequence[Outcome]) -> list[np.ndarray]:
    """The first round at which each part has an accuracy, on the seeds that all parts have."""
    return measured(parts, first_round(accuracy, *parts))


def bounded(part: Bounded, accuracy: float, own: Outcome, other: Outcome) -> Bounded:
    """The ratio of the rounds of ``own`` to those of ``other``, without an end that is not known.

    A run that never reaches the accuracy needs more rounds than it counts with: the ratio may be larger than measured
    if ``own`` has one, and smaller if ``other`` has one.
    """
    if math.isnan(part.low):
        return part
    never = [np.isinf(found).any() for found in measured([own, other], lambda cell: first(cell, accuracy))]
    return part._replace(low=0.0 if never[1] else part.low, high=math.inf if never[0] else part.high)


def spoken_well_of(*subjects: Where, others: Sequence[Where] = ()) -> Callable[[Question], Question]:
    """Makes a claim not hold if one of the subjects diverged on every seed; the answer names all divergences.

    Args:
      subjects: what the claim speaks well of.
      others: what it compares them with.
    """

    def decorated(question: Question) -> Question:
        @functools.wraps(question)
        def checked(outcome: Outcome) -> Answer:
            for subject in subjects:
                diverged = list(outcome.at(subject).by_seed(_diverged).values())
                if all(diverged):
                    return Answer(
                        (Votes(0, len(diverged), of_all=True),), divergences(outcome, subject).removeprefix("; ")
                    )
            answer = question(outcome)
            return answer._replace(ours=answer.ours + divergences(outcome, *others, *subjects))

        return checked

    return decorated


def divergences(outcome: Outcome, *parts: Where) -> str:
    """The parts that diverged on some seed that all parts have, as text that begins with a semicolon; else empty."""
    texts = []
    for part, diverged in zip(parts, measured([outcome.at(part) for part in parts], _diverged), strict=True):
        if diverged.any():
            name = ", ".join(written(axis, label) for axis, label in part.items())
            texts.append(f"; {name} diverged on {diverged.sum()} of {len(diverged)} seeds")
    return "".join(texts)


def _diverged(cell: Cell) -> bool:
    return cell.status == DIVERGED
