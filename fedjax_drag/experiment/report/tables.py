"""The figures of runs as a table: final accuracy or other metric, and what it took to reach a target."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_drag.experiment.plain import finite
from fedjax_drag.experiment.report import csv_files
from fedjax_drag.experiment.report.reading import Found, Group, ReportedRun
from fedjax_drag.simulation.criterion import ROUNDING, VALIDATION, Criterion

DASH = "\N{EN DASH}"
"""For a figure that there is not."""

_LONGEST = 1e12  # numbers from here on are written with an exponent
_STEP = 0.05  # between the accuracies of which one is chosen as target
_PERCENT = ", %"  # ends the head of a column of shares
_CLOCK = "wall clock, s"


class ResultColumn(NamedTuple):
    """A column of the table of results.

    Attributes:
      head: its name.
      figure: of a run that has begun; None where it was not measured, NaN where a target was not reached.
      form: how it is written.
      to_target: whether it is what it took to reach the target.
    """

    head: str
    figure: Callable[[ReportedRun], float | None]
    form: str = ".1f"
    to_target: bool = False


class ResultTable(NamedTuple):
    """Heads of the figures, a line for each group of runs with their texts, and a file with a line for each run."""

    heads: list[str]
    rows: list[tuple[Group, list[str]]]
    csv: str


def target_for(found: Found) -> float | None:
    """The largest multiple of 5 % that at least half of the lines reach in one of their runs; None if that is 0.

    There is none for a criterion that is no share, or better where it is lower.
    """
    by = found.criterion
    if not (by.is_share and by.higher_is_better):
        return None
    merit = lambda run: float(by.merits(at_best(run, by, by.column)))
    best = sorted(max(map(merit, group.drawn)) for group in found.groups if group.drawn)
    middle = best[len(best) // 2] if best else 0.0
    return round(int((min(max(middle, 0.0), 1.0) + ROUNDING) / _STEP) * _STEP, 2) or None


def results(found: Found, target: float | None) -> ResultTable:
    """Final and best value of the criterion, and what it took to reach ``target``, of each group of runs.

    With validation examples the best round and the target are by them.
    """
    columns = _columns(found.criterion, target)
    texts = [[_text(group, column) for column in columns] for group in found.groups]
    kept = [place for place in range(len(columns)) if any(line[place] != DASH for line in texts)]
    columns, texts = [columns[place] for place in kept], [[line[place] for place in kept] for line in texts]
    lines = [["what", "setting", "seed", "status", "folder", *(c.head.removesuffix(_PERCENT) for c in columns)]]
    lines += [
        [run.row, run.column, run.config.seed, run.status, run.place]
        + [column.figure(run) if run.history else None for column in columns]
        for group in found.groups
        for run in group.runs
    ]
    return ResultTable([c.head for c in columns], list(zip(found.groups, texts, strict=True)), csv_files.link(lines))


def at_best(run: ReportedRun, by: Criterion, column: str) -> float:
    """A column of a run that has begun, in the last of its best rounds."""
    return float(run.history[column][by.last_best(run.history[by.column])])


def mean_and_spread(values: Sequence[float], form: str = ".1f") -> str:
    """Mean and, over several runs, standard deviation; a dash without any."""
    if not values:
        return DASH
    largest = max(map(abs, values))
    if form == ",.0f" and 0 < largest < 100 and any(value % 1 for value in values):  # small, and no count
        form = f".{2 - math.floor(math.log10(largest))}f"
    form = form if largest < _LONGEST else ".3g"
    spread = f" \N{PLUS-MINUS SIGN} {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{spread}"


def goal(by: Criterion, target: float) -> str:
    """A target in words."""
    return f"{by.scale * target:g}{' %' * by.is_share}"


def _columns(by: Criterion, target: float | None) -> list[ResultColumn]:
    def column(head: str, figure: Callable[[ReportedRun], float | None]) -> ResultColumn:
        return ResultColumn(head + _PERCENT * by.is_share, figure, ".1f" if by.is_share else ".4g")

    columns = [column(f"final {by.label}", lambda run: float(run.history[by.test][-1]))]
    best = f"best {by.column if by.on == VALIDATION else by.name}".replace("_", " ")
    columns.append(column(best, lambda run: at_best(run, by, by.column)))
    if by.on == VALIDATION:
        columns.append(column(f"test {by.label} there", lambda run: at_best(run, by, by.test)))
    columns.append(column("worst tenth of the clients", lambda run: _worst_tenth(run, by)))
    for name, spent, form in (
        ("rounds", lambda run: run.spent("round"), ",.0f"),
        ("client seconds", lambda run: run.spent("client_seconds"), ".3g"),
        ("simulated seconds", lambda run: run.spent("seconds"), ".4g"),
        ("MB sent", _megabytes, ",.0f"),
    ):

        def cost(run: ReportedRun, spent: Callable[[ReportedRun], np.ndarray | None] = spent) -> float | None:
            values, place = spent(run), by.first_reached(run.history[by.column], target or 0.0)
            return None if values is None else np.nan if place is None else float(values[place])

        if target is not None:
            columns.append(ResultColumn(f"{name} to {goal(by, target)}", cost, form, to_target=True))
    return [*columns, ResultColumn(_CLOCK, lambda run: finite(run.figures.get("seconds")))]


def _text(group: Group, column: ResultColumn) -> str:
    """A figure of the runs behind a line: mean and standard deviation."""
    measured = [value for run in group.drawn if (value := column.figure(run)) is not None]
    known = [value * (100 if column.head.endswith(_PERCENT) else 1) for value in measured if np.isfinite(value)]
    if not column.to_target:  # seeds that ran as one program share its wall clock, whose spread is then no measurement
        return mean_and_spread([float(np.mean(known))] if known and column.head == _CLOCK else known, column.form)
    if measured and not known:
        return "not reached"
    missing = f" ({len(known)} of {len(measured)})" if len(known) < len(measured) else ""
    return mean_and_spread(known, column.form) + missing


def _worst_tenth(run: ReportedRun, by: Criterion) -> float | None:
    """Final value on the own examples of the worst tenth of the clients; None if not evaluated."""
    found = run.scalars(f"client_{by.name}_worst_tenth")
    return None if found is None else float(found[-1])


def _megabytes(run: ReportedRun) -> np.ndarray | None:
    """Bytes to and from clients so far, in millions ``[E]``; None if they were not counted."""
    down, up = run.spent("bytes_down"), run.spent("bytes_up")
    return None if down is None or up is None else (down + up) / 1e6
