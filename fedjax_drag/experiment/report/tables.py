"""The figures of runs as a table: final accuracy, and what it took to reach a target."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_drag.experiment.report import csv_files
from fedjax_drag.experiment.report.curves import Group, choice_of
from fedjax_drag.experiment.report.reading import ReportedRun, finite
from fedjax_drag.simulation.result import ROUNDING, TEST, VALIDATION, client_seconds, first_reached, last_highest

DASH = "\N{EN DASH}"
"""For a figure that there is not."""

_LONGEST = 1e12  # numbers from here on are written with an exponent
_STEP = 0.05  # between the accuracies of which one is chosen as target


class ResultLine(NamedTuple):
    """A line of the table of results.

    Attributes:
      row: what is compared.
      column: under which settings.
      status: how the runs ended.
      ok: whether all came to a good end.
      figures: texts, one for each of the heads.
      folders: seeds and folders of the runs, within that of the results.
    """

    row: str
    column: str
    status: str
    ok: bool
    figures: list[str]
    folders: list[tuple[int, str]]


class Table(NamedTuple):
    """The table of results; the heads are those of the figures; ``csv`` has a line for each run, in numbers."""

    heads: list[str]
    rows: list[ResultLine]
    csv: str


class BestRound(NamedTuple):
    """The evaluated round with the highest accuracy of a kind, that accuracy, and the test accuracy."""

    round: int
    accuracy: float
    test_accuracy: float


def target_for(found: Sequence[Group]) -> float | None:
    """The largest multiple of 5 % that at least half of the lines reach in one of their runs; None if that is 0."""
    metric = choice_of(found)
    best = sorted(max(best_of(run, metric).accuracy for run in group.drawn) for group in found if group.drawn)
    middle = best[len(best) // 2] if best else 0.0
    return round(int((min(max(middle, 0.0), 1.0) + ROUNDING) / _STEP) * _STEP, 2) or None


def results(found: Sequence[Group], target: float | None) -> Table:
    """Final and best accuracy, and what it took to reach ``target``, of each group of runs.

    With validation examples the best round and the target are by validation accuracy.
    """
    metric = choice_of(found)
    accuracies: list[tuple[str, Callable[[ReportedRun], float]]] = [("final accuracy, %", lambda run: last(run, TEST))]
    if metric == VALIDATION:
        accuracies.append(("best validation accuracy, %", lambda run: best_of(run, metric).accuracy))
        accuracies.append(("test accuracy there, %", lambda run: best_of(run, metric).test_accuracy))
    else:
        accuracies.append(("best accuracy, %", lambda run: best_of(run, metric).accuracy))
    wanted: list[tuple[str, Callable[[ReportedRun], float | None], Callable[[Group], str]]] = [
        (head, figure, lambda group, figure=figure: over(group, lambda run: 100 * figure(run)))
        for head, figure in accuracies
    ]
    worst = "worst tenth of the clients, %"
    wanted.append((worst, lambda run: (_worst_tenth(run) or np.nan) / 100, lambda group: over(group, _worst_tenth)))
    if target is not None:
        aim = (metric, target)
        costs: list[tuple[str, Callable[[ReportedRun], np.ndarray | None], str]] = [
            ("rounds", lambda run: run.history["round"], ",.0f"),
            ("client seconds", _client_seconds, ".3g"),
            ("MB sent", _megabytes, ",.0f"),
        ]
        wanted += [
            (
                f"{name} to {100 * target:g} %",
                lambda run, cost=cost: _when_reached(run, aim, cost),
                lambda group, cost=cost, form=form: _to(group, aim, cost, form),
            )
            for name, cost, form in costs
        ]
    wanted.append(("wall clock, s", _seconds, lambda group: over(group, _seconds, False)))
    texts = [[tell(group) for _, _, tell in wanted] for group in found]
    kept = [any(line[i] != DASH for line in texts) for i in range(len(wanted))]
    rows = [
        ResultLine(group.row, group.column, *_end(group.runs), list(itertools.compress(line, kept)), _folders(group))
        for group, line in zip(found, texts, strict=True)
    ]
    figures = [(head.removesuffix(", %"), figure) for head, figure, _ in itertools.compress(wanted, kept)]
    lines = [
        [run.row, run.column, run.config.seed, run.status, run.place]
        + [figure(run) if run.history else None for _, figure in figures]
        for group in found
        for run in group.runs
    ]
    head = ["what", "setting", "seed", "status", "folder", *(name for name, _ in figures)]
    return Table(list(itertools.compress((head for head, _, _ in wanted), kept)), rows, csv_files.link([head, *lines]))


def _folders(group: Group) -> list[tuple[int, str]]:
    """Seeds and folders of the runs that have one."""
    return [(run.config.seed, run.place) for run in group.runs if run.place and run.history]


def best_of(run: ReportedRun, metric: str) -> BestRound:
    """The last round with the highest accuracy of a run that has begun; an accuracy that is not finite counts as 0."""
    accuracy = np.nan_to_num(run.history[metric], nan=0.0, posinf=0.0, neginf=0.0)
    place = last_highest(accuracy)
    test = float(accuracy[place] if metric == TEST else run.history[TEST][place])
    return BestRound(int(run.history["round"][place]), float(accuracy[place]), test)


def _worst_tenth(run: ReportedRun) -> float | None:
    """Final accuracy on the own examples of the worst tenth of the clients, in percent; None if not evaluated."""
    found = run.scalars("client_accuracy_worst_tenth")
    return None if found is None else 100 * float(found[-1])


def rounds_to(run: ReportedRun, metric: str, target: float) -> int | None:
    """First evaluated round in which an accuracy of a run reaches ``target``, or None."""
    place = first_reached(run.history[metric], target)
    return None if place is None else int(run.history["round"][place])


def last(run: ReportedRun, metric: str) -> float:
    """An accuracy at the end of a run that has begun."""
    return float(run.history[metric][-1])


def _seconds(run: ReportedRun) -> float | None:
    return finite(run.figures.get("seconds"))


def _when_reached(
    run: ReportedRun, target: tuple[str, float], measured: Callable[[ReportedRun], np.ndarray | None]
) -> float | None:
    """What was measured when a run first had the accuracy of a kind that is the target; None if it never had."""
    place, values = first_reached(run.history[target[0]], target[1]), measured(run)
    return None if place is None or values is None else float(values[place])


def _client_seconds(run: ReportedRun) -> np.ndarray | None:
    """What the slowest client of every round would have needed so far ``[E]``; None if clients were not timed."""
    seconds, steps = finite(run.figures.get("seconds_per_local_step")), run.scalars("slowest_steps")
    return None if seconds is None or steps is None else client_seconds(steps, seconds)


def _megabytes(run: ReportedRun) -> np.ndarray | None:
    """Bytes to and from clients so far, in millions ``[E]``; None if they were not counted."""
    down, up = run.scalars("bytes_down"), run.scalars("bytes_up")
    return None if down is None or up is None else np.cumsum(down + up) / 1e6


def over(group: Group, figure: Callable[[ReportedRun], float | None], spread: bool = True) -> str:
    """A figure of the runs behind a line: mean and standard deviation."""
    known = [value for run in group.drawn if (value := figure(run)) is not None and np.isfinite(value)]
    # Seeds that ran as one program share its wall clock, so that their spread is none of the measurement.
    return _told(known if spread or not known else [float(np.mean(known))], ".1f")


def _to(
    group: Group, target: tuple[str, float], measured: Callable[[ReportedRun], np.ndarray | None], form: str
) -> str:
    """What was measured when a group's runs first had the accuracy of a kind that is the target."""
    known = [run for run in group.drawn if measured(run) is not None]
    reached = [x for run in known if (x := _when_reached(run, target, measured)) is not None]
    if not known:
        return DASH
    if not reached:
        return "not reached"
    return _told(reached, form) + (f" ({len(reached)} of {len(known)})" if len(reached) < len(known) else "")


def _told(values: Sequence[float], form: str) -> str:
    """Mean and, over several runs, standard deviation."""
    if not values:
        return DASH
    largest = max(map(abs, values))
    if form == ",.0f" and 0 < largest < 100 and any(value % 1 for value in values):  # small, and no count
        form = f".{2 - math.floor(math.log10(largest))}f"
    form = form if largest < _LONGEST else ".3g"
    spread = f" \N{PLUS-MINUS SIGN} {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{spread}"


def _end(runs: Sequence[ReportedRun]) -> tuple[str, bool]:
    """How runs ended, and whether that is well."""
    counts = Counter(run.status for run in runs)
    told = ", ".join(status if len(runs) == 1 else f"{number} {status}" for status, number in counts.items())
    return told, set(counts) == {"done"}
