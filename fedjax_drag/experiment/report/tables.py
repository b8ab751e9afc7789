"""The figures of runs as tables: final accuracy, what it took to reach a target, and the matrix of a sweep."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_drag.experiment.report.curves import Group, choice_of
from fedjax_drag.experiment.report.reading import Found, Run, cells, finite
from fedjax_drag.experiment.sweep import outcome_table
from fedjax_drag.simulation.result import ROUNDING, TEST, VALIDATION, client_seconds, first_reached, last_highest

DASH = "\N{EN DASH}"
"""For a figure that there is not."""

_LONGEST = 1e12  # numbers from here on are written with an exponent
_STEP = 0.05  # between the accuracies of which one is chosen as target


class Row(NamedTuple):
    """A line of the table of results.

    Attributes:
      row: what is compared.
      column: under which settings.
      status: how the runs ended.
      ok: whether all came to a good end.
      figures: texts, one for each of the heads.
    """

    row: str
    column: str
    status: str
    ok: bool
    figures: list[str]


class Table(NamedTuple):
    """The table of results; the heads are those of the figures."""

    heads: list[str]
    rows: list[Row]


class Entry(NamedTuple):
    """A cell of the matrix: its text, and its shade from 0 to 100, None if it has no figure."""

    text: str
    shade: int | None


class Robustness(NamedTuple):
    """The matrix of a sweep.

    Attributes:
      axis: what the rows are values of.
      heads: a line for each other axis: its name, and its labels with the number of columns that each spans.
      rows: label, worst case and entries, the best worst case first.
      num_seeds: runs behind an entry.
      metric: the accuracy that the entries are.
    """

    axis: str
    heads: list[tuple[str, list[tuple[str, int]]]]
    rows: list[tuple[str, Entry, list[Entry]]]
    num_seeds: int
    metric: str


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
    accuracies: list[tuple[str, Callable[[Run], float]]] = [("final accuracy, %", lambda run: _last(run, TEST))]
    if metric == VALIDATION:
        accuracies.append(("best validation accuracy, %", lambda run: best_of(run, metric).accuracy))
        accuracies.append(("test accuracy there, %", lambda run: best_of(run, metric).test_accuracy))
    else:
        accuracies.append(("best accuracy, %", lambda run: best_of(run, metric).accuracy))
    wanted: list[tuple[str, Callable[[Group], str]]] = [
        (head, lambda group, figure=figure: _over(group, lambda run: 100 * figure(run))) for head, figure in accuracies
    ]
    wanted.append(("worst tenth of the clients, %", lambda group: _over(group, _worst_tenth)))
    if target is not None:
        to = f"to {100 * target:g} %"
        wanted += [
            (f"rounds {to}", lambda group: _to(group, (metric, target), lambda run: run.history["round"], ",.0f")),
            (f"client seconds {to}", lambda group: _to(group, (metric, target), _client_seconds, ".3g")),
            (f"MB sent {to}", lambda group: _to(group, (metric, target), _megabytes, ",.0f")),
        ]
    wanted.append(("wall clock, s", lambda group: _over(group, lambda run: finite(run.figures.get("seconds")), False)))
    texts = [[tell(group) for _, tell in wanted] for group in found]
    kept = [any(line[i] != DASH for line in texts) for i in range(len(wanted))]
    rows = [
        Row(group.row, group.column, *_end(group.runs), list(itertools.compress(line, kept)))
        for group, line in zip(found, texts, strict=True)
    ]
    return Table(list(itertools.compress((head for head, _ in wanted), kept)), rows)


def robustness(found: Found) -> Robustness | None:
    """The matrix of a sweep with more than one column; None if there is none."""
    if found.grid is None:
        return None
    grid, made = found.grid, outcome_table.matrix(found.grid, cells(found))
    if len(made.columns) < 2:
        return None
    settings = dict.fromkeys(
        tuple((axis, str(point.values[axis])) for axis in grid.axes if axis not in ("seed", made.axis))
        for point in grid.points
    )
    heads = []
    for level, (axis, _) in enumerate(next(iter(settings))):
        runs = [list(same) for _, same in itertools.groupby(settings, key=lambda setting: setting[: level + 1])]
        heads.append((axis.rpartition(".")[2], [(same[0][level][1], len(same)) for same in runs]))
    known = made.mean[np.isfinite(made.mean)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)

    def shade(value: float) -> int | None:
        # Cubed, since good rules are close together where a bad one is far away.
        return round(100 * ((value - low) / (high - low or 1.0)) ** 3) if np.isfinite(value) else None

    rows = [
        (
            row,
            Entry(outcome_table.percent(worst), shade(worst)),
            [Entry(*pair) for pair in zip(texts, map(shade, means), strict=True)],
        )
        for row, texts, means, worst in zip(made.rows, made.texts, made.mean.tolist(), made.worst.tolist(), strict=True)
    ]
    return Robustness(made.axis, heads, rows, made.num_seeds, made.metric)


def best_of(run: Run, metric: str) -> BestRound:
    """The last round with the highest accuracy of a run that has begun; an accuracy that is not finite counts as 0."""
    accuracy = np.nan_to_num(run.history[metric], nan=0.0, posinf=0.0, neginf=0.0)
    place = last_highest(accuracy)
    test = float(accuracy[place] if metric == TEST else run.history[TEST][place])
    return BestRound(int(run.history["round"][place]), float(accuracy[place]), test)


def _worst_tenth(run: Run) -> float | None:
    """Final accuracy on the own examples of the worst tenth of the clients, in percent; None if not evaluated."""
    found = run.scalars("client_accuracy_worst_tenth")
    return None if found is None else 100 * float(found[-1])


def rounds_to(run: Run, metric: str, target: float) -> int | None:
    """First evaluated round in which an accuracy of a run reaches ``target``, or None."""
    place = first_reached(run.history[metric], target)
    return None if place is None else int(run.history["round"][place])


def _last(run: Run, metric: str) -> float:
    return float(run.history[metric][-1])


def _client_seconds(run: Run) -> np.ndarray | None:
    """What the slowest client of every round would have needed so far ``[E]``; None if clients were not timed."""
    seconds, steps = finite(run.figures.get("seconds_per_local_step")), run.scalars("slowest_steps")
    return None if seconds is None or steps is None else client_seconds(steps, seconds)


def _megabytes(run: Run) -> np.ndarray | None:
    """Bytes to and from clients so far, in millions ``[E]``; None if they were not counted."""
    down, up = run.scalars("bytes_down"), run.scalars("bytes_up")
    return None if down is None or up is None else np.cumsum(down + up) / 1e6


def _over(group: Group, figure: Callable[[Run], float | None], spread: bool = True) -> str:
    known = [value for run in group.drawn if (value := figure(run)) is not None and np.isfinite(value)]
    # Seeds that ran as one program share its wall clock, so that their spread is none of the measurement.
    return _told(known if spread or not known else [float(np.mean(known))], ".1f")


def _to(group: Group, target: tuple[str, float], measured: Callable[[Run], np.ndarray | None], form: str) -> str:
    """What was measured when a group's runs first had the accuracy of a kind that is the target."""
    metric, accuracy = target
    known = [(run, values) for run in group.drawn if (values := measured(run)) is not None]
    pairs = [(first_reached(run.history[metric], accuracy), values) for run, values in known]
    reached = [float(values[place]) for place, values in pairs if place is not None]
    if not pairs:
        return DASH
    if not reached:
        return "not reached"
    return _told(reached, form) + (f" ({len(reached)} of {len(pairs)})" if len(reached) < len(pairs) else "")


def _told(values: Sequence[float], form: str) -> str:
    """Mean and, over several runs, standard deviation."""
    if not values:
        return DASH
    form = form if max(map(abs, values)) < _LONGEST else ".3g"
    spread = f" \N{PLUS-MINUS SIGN} {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{spread}"


def _end(runs: Sequence[Run]) -> tuple[str, bool]:
    """How runs ended, and whether that is well."""
    counts = Counter(run.status for run in runs)
    told = ", ".join(status if len(runs) == 1 else f"{number} {status}" for status, number in counts.items())
    return told, set(counts) == {"done"}
