"""Runs as lines with bands over seeds: over communication rounds, clients and classes, a chart for each setting."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.plain import grouped
from fedjax_drag.experiment.report import charts
from fedjax_drag.experiment.report.charts import Chart, Line
from fedjax_drag.experiment.report.reading import ReportedRun
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.run.metric_kinds import METRICS, MetricKind, kind
from fedjax_drag.experiment.sweep.choice import place_of_best
from fedjax_drag.experiment.sweep.outcome_table import exact_mean
from fedjax_drag.simulation.criterion import Criterion, common

LINES = 8
"""Lines in a chart; more are divided among charts, the best first."""

_SHARES = np.linspace(0.0, 1.0, 101)  # of the clients, from the worst to the best, at which metrics are drawn
_FEW_CLASSES = 20  # each of which has a tick


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ only by seed.

    Attributes:
      row: what is compared.
      column: under which settings.
      runs: all of them.
    """

    row: str
    column: str
    runs: tuple[ReportedRun, ...]

    @property
    def drawn(self) -> tuple[ReportedRun, ...]:
        """Those that figures are taken from: the ones that came to their end, or if none has, those that began."""
        ended = tuple(run for run in self.runs if run.status in ("done", "diverged"))
        return ended or tuple(run for run in self.runs if run.history)

    @property
    def statuses(self) -> dict[str, int]:
        """How many runs ended how."""
        return Counter(run.status for run in self.runs)

    def finals(self, metric: str) -> list[float]:
        """A metric at the end of the runs that figures are taken from."""
        return [float(run.history[metric][-1]) for run in self.drawn]

    def final(self, metric: str) -> float:
        """A metric at the end, its mean over the seeds, as a sweep compares it; NaN without any."""
        return exact_mean(np.array(self.finals(metric)))

    def line(self, measure: str) -> Line | None:
        """A quantity at the rounds that all runs have; None if they do not have it, or no round in common."""
        found = [(run.history["round"], y) for run in self.drawn if (y := run.scalars(measure)) is not None]
        rounds = reduce(np.intersect1d, [x for x, _ in found]) if found else np.zeros(0)
        if not rounds.size:
            return None
        return charts.over_seeds(self.row, rounds, np.transpose([y[np.isin(x, rounds)] for x, y in found]))


class Panel(NamedTuple):
    """A chart of the page.

    Attributes:
      chart: its data and layout.
      title: above it; empty if it is the only one.
      about: what it shows, for those who cannot see it.
    """

    chart: Chart
    title: str
    about: str


class Block(NamedTuple):
    """All charts of one quantity.

    Attributes:
      title: the quantity.
      shown: whether it is unfolded at first.
      parts: charts that share a legend, the names of at most :data:`LINES` lines.
    """

    title: str
    shown: bool
    parts: list[tuple[list[str], list[Panel]]]


def groups(runs: Sequence[ReportedRun]) -> list[Group]:
    """The runs by row and column, in their order."""
    found = grouped(runs, lambda run: (run.row, run.column))
    return [Group(row, column, tuple(same)) for (row, column), same in found.items()]


def criterion_of(found: Sequence[Group]) -> Criterion:
    """By what rounds and settings are chosen: the same for all runs."""
    return common(run for group in found for run in group.drawn)


def best_setting(found: Sequence[Group], crossed: bool) -> list[Group]:
    """The groups of the setting that is best, as the summary of a sweep chooses it; none without a figure.

    Args:
      found: the groups.
      crossed: whether columns are conditions, and a row is a setting; else each group is one.
    """
    by, settings = criterion_of(found), [*grouped(found, lambda one: (one.row, crossed or one.column)).values()]
    worst = np.array([by.worst([one.final(by.column) for one in same]) for same in settings])
    place = place_of_best(worst, [{run.status for one in same for run in one.runs} for same in settings], by)
    return [] if place is None else settings[place]


def over_rounds(found: Sequence[Group], target: float | None) -> list[Block]:
    """The charts of every quantity that the runs have over rounds; ``target`` is of their criterion, or None."""
    by = criterion_of(found)
    shown = {by.column, by.test} | ({"test_loss"} if len({group.column for group in found}) == 1 else set())
    made = []
    for measure in _measures(found, by.test):
        is_share = by.is_share if measure in (by.column, by.test) else kind(measure) is MetricKind.SHARE
        title = metric_kinds.title(measure)
        lines = [(group, group.line(measure)) for group in found]
        aim = target if measure == by.column else None
        blocks = block(title, lines, f"{title} over communication rounds", is_share, target=aim)
        made += [one._replace(shown=measure in shown) for one in blocks]
    return made


def every_client(found: Sequence[Group]) -> list[Block]:
    """The final model client by client and class by class, by its accuracy or what else the criterion is.

    There is none where clients were not evaluated.
    """
    by = criterion_of(found)
    worst_first = np.sort if by.higher_is_better else lambda values: -np.sort(-values)
    lines = [(group, _last(group, f"client_{by.name}", worst_first)) for group in found]
    title = metric_kinds.title(f"client_{by.name}")
    axis = charts.axis_title("clients, from the worst to the best", "worst")
    axis |= {"range": [0.0, 1.02], "tickformat": ".0%"}
    made = block(title, lines, f"final {title}, the clients sorted from the worst to the best", by.is_share, axis)
    lines = [(group, _last(group, "class_accuracy")) for group in found]
    title = metric_kinds.title("class_accuracy")
    classes = max((len(line.x) for _, line in lines if line), default=0)
    axis = charts.axis_title("class", "class") | {"range": [-0.5, classes - 0.5], "showgrid": False}
    axis |= {"dtick": 1} if classes <= _FEW_CLASSES else {}
    return made + block(title, lines, f"final {title}", True, axis)


def block(
    title: str,
    lines: Sequence[tuple[Group, Line | None]],
    about: str,
    percent: bool,
    xaxis: dict[str, Any] | None = None,
    target: float | None = None,
) -> list[Block]:
    """A chart for each setting, with a line for each of the groups that are compared in it; none without lines.

    Args:
      title: the quantity.
      lines: of all groups, None of one that has none; their series are numbered here.
      about: what a chart shows, for those who cannot see it.
      percent: whether the values are shares.
      xaxis: the horizontal axis; default communication rounds.
      target: where a dotted line is drawn, or None.
    """
    if not any(line for _, line in lines):
        return []
    yaxis = charts.vertical_axis(title, [line for _, line in lines if line], percent)
    columns = list(dict.fromkeys(group.column for group, _ in lines))
    rows = list(dict.fromkeys(group.row for group, _ in lines))
    if len(rows) > LINES:
        by = criterion_of([group for group, _ in lines])
        best = {row: max(by.merits(g.final(by.column)) for g, _ in lines if g.row == row) for row in rows}
        rows.sort(key=lambda row: -best[row])
    parts = []
    for start in range(0, len(rows), LINES):
        names, panels = rows[start : start + LINES], []
        for column in columns:
            here = {group.row: line for group, line in lines if line and group.column == column}
            drawn = [here[row]._replace(series=series) for series, row in enumerate(names) if row in here]
            if drawn:
                where = f"{about}, {column}" if column else about
                panels.append(Panel(charts.curves(drawn, yaxis, xaxis, target), column * (len(columns) > 1), where))
        parts.append((names, panels))
    return [Block(title, True, parts)]


def _last(group: Group, name: str, rank: Callable[[np.ndarray], np.ndarray] | None = None) -> Line | None:
    """The last evaluation of a metric with several numbers, sorted by ``rank``; None without a finite one."""
    finals = [np.asarray(run.history[name][-1]) for run in group.drawn if name in run.history]
    finals = [final for final in finals if final.ndim and np.isfinite(final).any()]
    if rank is not None:
        finals = [rank(np.quantile(final[np.isfinite(final)], _SHARES)) for final in finals]
    if not finals:
        return None
    x = np.arange(len(finals[0])) if rank is None else _SHARES
    return charts.over_seeds(group.row, x, np.transpose([final for final in finals if len(final) == len(x)]))


def _measures(found: Sequence[Group], first: str) -> list[str]:
    """Quantities with one number for each evaluation that are not 0 throughout."""
    shown = dict.fromkeys(
        name
        for group in found
        for run in group.drawn
        for name in run.history
        if kind(name) is not MetricKind.COST
        and (values := run.scalars(name)) is not None
        and np.any(np.nan_to_num(values))
    )
    return [name for name in dict.fromkeys((first, *METRICS, *shown)) if name in shown]
