"""Questions to the outcome of a sweep, from which claims are decided.

Each function returns a :data:`~reproduction.judging.claims.Question`, which compares on equal seeds. ``subject`` and
``other`` are parts of the sweep; ``where`` restricts the whole question to a part. Accuracies are shares between 0 and
1.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.sweep.grid import METHOD
from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction.judging.claims import Answer, Question, Where
from reproduction.judging.comparison import (
    aim,
    bounded,
    divergences,
    first_round,
    measured,
    others_of,
    reachable,
    rounds_to,
    runner_up,
    spoken_well_of,
    strongest,
)
from reproduction.judging.margins import (
    EQUIVALENT,
    FAILS,
    HOLDS,
    LEVEL,
    UNDECIDED,
    Interval,
    Part,
    Prediction,
    Votes,
    across,
    of_turns,
    predicted,
    widened,
)
from reproduction.judging.outcome import (
    ACCURACY,
    DIVERGED,
    MissingError,
    Outcome,
    best,
    best_before,
    first,
    level,
    over_the_run,
    swing,
)
from reproduction.names import percent, written

Ratio = Interval | Prediction

FEWEST_EVALUATIONS = 10
"""From which a curve shows whether a run converges."""

MAX_SHOWN = 4
"""Number of answers that :func:`every` lists; if there are more, it lists those that do not agree with the paper."""


def faster(subject: Where, other: Where, accuracy: float, at_most: float = 1.0) -> Question:
    """Whether ``subject`` reaches an accuracy in fewer rounds than ``other``.

    ``at_most`` is the ratio that the paper has of one run: whether such a ratio, or a smaller one, can be one of ours.
    """

    @spoken_well_of(subject, others=[other])
    def question(outcome: Outcome) -> Answer:
        pair = outcome.at(subject), outcome.at(other)
        target = reachable(accuracy, pair)
        own, theirs = rounds_to(target, pair)
        parts = _ratio(np.log(own / theirs), at_most, target, pair)
        texts = [_rounds(side, target, part) for side, part in zip((own, theirs), pair, strict=True)]
        rounds = f"{texts[0]} against {texts[1]} rounds to {aim(target, accuracy)}"
        return Answer(parts, f"{parts[0].mean:.2f} ({rounds})")

    return question


def reaches(subject: Where, accuracy: float, within: float) -> Question:
    """Whether most runs of ``subject`` reach an accuracy within a number of rounds."""

    def question(outcome: Outcome) -> Answer:
        (rounds,) = measured([outcome.at(subject)], lambda cell: first(cell, accuracy))
        reached = np.sort(rounds)
        ours = f"in rounds {', '.join('never' if math.isinf(one) else f'{one:.0f}' for one in reached)}"
        return Answer((Votes(int((rounds <= within).sum()), len(rounds)),), ours)

    return question


def first_to(axis: str, label: Any, accuracy: float, where: Where, beside: Sequence[Any] = ()) -> Question:
    """Whether one value of an axis reaches an accuracy before all others; those in ``beside`` are not compared.

    The accuracy is the paper's if on each seed it or the other with the highest accuracy reaches that, else one that
    both reach on all seeds.
    """

    @spoken_well_of({**where, axis: label})
    def question(outcome: Outcome) -> Answer:
        part = outcome.at(where)
        own, others = part.at({axis: label}), others_of(part, axis, label, beside)
        target = reachable(accuracy, [own, others[strongest(own, others, best)]])
        reached = first_round(target, own, *others.values())

        def earlier(name: Any, mine: np.ndarray, theirs: np.ndarray) -> Interval:
            ratio = across(theirs - mine, "times", at_most=1.0, strict=True)  # both are negative logarithms
            return bounded(ratio, target, own, others[name])

        other = runner_up(own, others, lambda cell: -np.log(reached(cell)), earlier)
        sides = (other.own, own), (other.theirs, others[other.name])
        rounds = [_rounds(np.exp(-logs), target, side) for logs, side in sides]
        name = written(axis, other.name)
        return other.decides(f"round {rounds[0]}, {name} round {rounds[1]}, to {aim(target, accuracy)}")

    return question


def highest(axis: str, label: Any, where: Where, beside: Sequence[Any] = (), metric: str = ACCURACY) -> Question:
    """Whether one value of an axis ends above all others in a metric; those in ``beside`` are not compared.

    It is compared with each of them.
    """
    return _above_all(axis, label, where, beside, functools.partial(level, name=metric))


def fastest(axis: str, label: Any, where: Where, beside: Sequence[Any] = ()) -> Question:
    """Whether one value of an axis learns faster than all others, by the mean accuracy over the run.

    Those in ``beside`` are not compared.
    """
    return _over_the_whole_run(_above_all(axis, label, where, beside, over_the_run))


def ahead(
    subject: Where, other: Where, by: float = 0.0, at_most: float = math.inf, lead: float | None = None
) -> Question:
    """Whether ``subject`` ends above ``other`` by at least ``by`` and by no more than ``at_most``.

    ``lead`` is what the paper has of one run: whether such a lead, or a larger one, can be one of ours.
    """

    @spoken_well_of(subject, others=[other])
    def question(outcome: Outcome) -> Answer:
        own, theirs = measured([outcome.at(subject), outcome.at(other)], level)
        parts: list[Part] = [across(own - theirs, "points", at_least=100 * by, at_most=100 * at_most)]
        if lead is not None:
            parts.append(predicted(own - theirs, "points", 100 * lead, at_least=True))
        return Answer(tuple(parts), f"{percent(own.mean())} against {percent(theirs.mean())}")

    return question


def level_with(subject: Where, other: Where) -> Question:
    """Whether ``subject`` ends as ``other`` does, within :data:`~reproduction.judging.margins.EQUIVALENT`."""
    within = EQUIVALENT["points"] / 100
    return ahead(subject, other, by=-within, at_most=within)


def wider(more: tuple[Where, Where], less: tuple[Where, Where]) -> Question:
    """Whether the lead of a subject over another one is larger in the pair ``more`` of them than in the pair ``less``.

    The subjects may differ in what a paper sets by the panel.
    """

    @spoken_well_of(more[0], less[0], others=[more[1], less[1]])
    def question(outcome: Outcome) -> Answer:
        own, theirs, own_less, theirs_less = measured([outcome.at(part) for part in (*more, *less)], level)
        leads = own - theirs, own_less - theirs_less
        gap = across(leads[0] - leads[1], "points", at_least=0.0, strict=True)
        return Answer((gap,), f"{100 * leads[0].mean():+.1f} against {100 * leads[1].mean():+.1f} points")

    return question


def rising(axis: str, labels: Sequence[Any], where: Where) -> Question:
    """Whether the final accuracy rises along these values of an axis."""
    return _along(axis, labels, where, level)


def sooner(axis: str, labels: Sequence[Any], where: Where) -> Question:
    """Whether learning becomes faster along these values of an axis, by the mean accuracy over the run."""
    return _over_the_whole_run(_along(axis, labels, where, over_the_run))


def converges(subject: Where, guessing: float, wanted: bool = True) -> Question:
    """Whether ``subject`` converges on every seed, or on none if ``wanted`` is False.

    It converges if the mean of the last evaluations is at least 90 % of the best accuracy before them, and at least
    twice the accuracy of guessing. So a run whose accuracy still rises converges. A run of fewer than
    :data:`FEWEST_EVALUATIONS` evaluations does not show it.
    """

    def question(outcome: Outcome) -> Answer:
        own = outcome.at(subject)
        (steady,) = _converged([own], guessing)
        ends, tops = (float(np.mean(list(own.by_seed(quantity).values()))) for quantity in (level, best_before))
        ours = f"ends at {percent(ends)}, best before {percent(tops)}{divergences(outcome, subject)}"
        return Answer((Votes(int((steady == wanted).sum()), len(steady)),), ours)

    return question


def gives_way(axis: str, label: Any, panels: Sequence[Where], guessing: float) -> Question:
    """Whether one value of an axis fails to converge (:func:`converges`) in a panel or more, on most seeds."""

    def question(outcome: Outcome) -> Answer:
        steady = _converged([outcome.at({**where, axis: label}) for where in panels], guessing)
        lost = ~np.all(steady, axis=0)
        return Answer((Votes(int(lost.sum()), len(lost)),), written(axis, label))

    return question


def steadier(subject: Where, other: Where) -> Question:
    """Whether the accuracy of ``subject`` changes less between evaluations, in the second half of the run."""

    @spoken_well_of(subject)
    def question(outcome: Outcome) -> Answer:
        own, theirs = measured([outcome.at(subject), outcome.at(other)], swing)
        part = across(own - theirs, "points an evaluation", at_most=0.0)
        return Answer((part,), f"{100 * own.mean():.1f} against {100 * theirs.mean():.1f}")

    return question


def quicker(label: str, other: str, accuracy: float, at_most: float) -> Question:
    """Whether a method reaches an accuracy in less client time than another method; ``at_most`` as of :func:`faster`.

    The interval is that of the rounds over the seeds, widened by that of the ratio of the times of a round, the median
    over the turns.
    """

    @spoken_well_of({METHOD: label})
    def question(outcome: Outcome) -> Answer:
        pair = outcome.at({METHOD: label}), outcome.at({METHOD: other})
        target = reachable(accuracy, pair)
        own, theirs = rounds_to(target, pair)
        a_round = of_turns(outcome.time_ratios(label, other))
        half = math.log(a_round.high / a_round.low) / 2
        parts = _ratio(np.log(own / theirs * a_round.mean), at_most, target, pair, half)
        return Answer(parts, f"{parts[0].mean:.2f} of its time to {aim(target, accuracy)}")

    return question


def costlier(label: str, other: str, at_least: float, at_most: float = math.inf) -> Question:
    """Whether the client time a round of a method is this multiple of that of another method."""

    def question(outcome: Outcome) -> Answer:
        part = of_turns(outcome.time_ratios(label, other), at_least=at_least, at_most=at_most)
        return Answer((part,), f"{part.mean:.2f} times")

    return question


def every(*questions: Question) -> Question:
    """Whether all of these hold; one that does not decides, even if others are not measured."""

    def question(outcome: Outcome) -> Answer:
        answers, missing = [], 0
        for own in questions:
            try:
                answers.append(own(outcome))
            except MissingError:
                missing += 1
        verdicts = Counter(answer.verdict for answer in answers)
        if missing and not verdicts[FAILS]:
            raise MissingError(f"{missing} of {len(questions)} parts are missing")
        counts = [f"{word} {verdicts[word]}" for word in (HOLDS, FAILS, LEVEL, UNDECIDED) if verdicts[word]]
        counts += [f"not measured {missing}"] if missing else []
        texts = [answer.text for answer in answers if len(answers) <= MAX_SHOWN or answer.verdict != HOLDS]
        shown = [*texts[:MAX_SHOWN], *(["..."] if len(texts) > MAX_SHOWN else [])]
        ours = ": ".join(filter(None, [", ".join(counts), " / ".join(shown)]))
        return Answer(tuple(part for answer in answers for part in answer.parts), ours, shows_intervals=True)

    return question


def _converged(parts: Sequence[Outcome], guessing: float) -> list[np.ndarray]:
    """Whether each part converges, on the seeds that all parts have.

    Raises:
      MissingError: a part has no run of enough evaluations.
    """
    for part in parts:
        if (number := max(len(cell.history["round"]) for cell in part.complete())) < FEWEST_EVALUATIONS:
            raise MissingError(f"{number} evaluations do not show whether a run converges")

    def steady(cell: Cell) -> bool:
        return cell.status != DIVERGED and level(cell) >= max(0.9 * best_before(cell), 2 * guessing)

    return measured(parts, steady)


def _ratio(
    logs: np.ndarray, at_most: float, target: float, pair: tuple[Outcome, Outcome], half: float = 0.0
) -> tuple[Ratio, ...]:
    """Whether ratios, given their logarithms, are below 1, and whether one of ours may be a paper's ``at_most``.

    ``half`` is the half width, in logarithms, of the interval of a factor that all of them have.
    """
    below = bounded(widened(across(logs, "times", at_most=1.0), half), target, *pair)
    if at_most == 1.0:
        return (below,)
    return below, bounded(widened(predicted(logs, "times", at_most, at_least=False), half), target, *pair)


def _rounds(rounds: np.ndarray, accuracy: float, part: Outcome) -> str:
    """The mean of rounds to an accuracy as text; of one that some run never reaches it is but a lower bound."""
    (reached,) = measured([part], lambda cell: first(cell, accuracy))
    never = int(np.isinf(reached).sum())
    return (
        f"at least {rounds.mean():.0f} (never on {never} of {len(reached)} seeds)" if never else f"{rounds.mean():.0f}"
    )


def _above_all(
    axis: str, label: Any, where: Where, beside: Sequence[Any], quantity: Callable[[Cell], float]
) -> Question:
    def higher(name: Any, own: np.ndarray, theirs: np.ndarray) -> Interval:
        return across(own - theirs, "points", at_least=0.0, strict=True)

    @spoken_well_of({**where, axis: label})
    def question(outcome: Outcome) -> Answer:
        part = outcome.at(where)
        other = runner_up(part.at({axis: label}), others_of(part, axis, label, beside), quantity, higher)
        name = f"{other.rank}{written(axis, other.name)}"
        highest = "" if other.foremost == other.name else f" (the highest is {written(axis, other.foremost)})"
        return other.decides(f"{percent(other.own.mean())}, {name} {percent(other.theirs.mean())}{highest}")

    return question


def _along(axis: str, labels: Sequence[Any], where: Where, quantity: Callable[[Cell], float]) -> Question:
    @spoken_well_of(*({**where, axis: label} for label in labels[1:]), others=[{**where, axis: labels[0]}])
    def question(outcome: Outcome) -> Answer:
        values = measured([outcome.at({**where, axis: label}) for label in labels], quantity)
        gains = [b - a for a, b in itertools.pairwise(values)]
        steps = [across(gain, "points", at_least=0.0, strict=True) for gain in gains]
        shares = zip(labels, values, strict=True)
        ours = ", ".join(f"{written(axis, label)} {percent(own.mean())}" for label, own in shares)
        return Answer(tuple(steps), ours)

    return question


def _over_the_whole_run(question: Question) -> Question:
    """The same question, whose answer says that its figures are means over the run."""

    def over_the_whole_run(outcome: Outcome) -> Answer:
        answer = question(outcome)
        return answer._replace(ours=f"mean over the run: {answer.ours}")

    return over_the_whole_run
