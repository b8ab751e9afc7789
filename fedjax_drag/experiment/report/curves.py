"""Runs as lines over communication rounds: means and bands over seeds, a chart for each setting."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.report import charts
from fedjax_drag.experiment.report.charts import Line, Scale
from fedjax_drag.experiment.report.reading import ReportedRun
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.run.metric_kinds import METRICS, MetricKind, kind
from fedjax_drag.simulation.result import TEST, choice_metric

LINES = 8
"""Lines in a chart; more are divided among charts, the best first."""


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

    def final(self, metric: str) -> float:
        """An accuracy at the end, its mean over the seeds; NaN without any."""
        lasts = [float(run.history[metric][-1]) for run in self.drawn]
        return float(np.mean(lasts)) if lasts else np.nan

    def line(self, measure: str, series: int) -> Line | None:
        """Mean over seeds in a band from their minimum to their maximum, at the rounds that all have; None without."""
        found = [(run.history["round"], y) for run in self.drawn if (y := run.scalars(measure)) is not None]
        if not found:
            return None
        rounds = reduce(np.intersect1d, [x for x, _ in found])
        stacked = np.stack([y[np.isin(x, rounds)] for x, y in found])
        spread = (stacked.min(0), stacked.max(0)) if len(found) > 1 else (None, None)
        return Line(self.row, series, rounds, stacked.mean(0), *spread)


class Panel(NamedTuple):
    """A chart of the page.

    Attributes:
      chart: its number among the charts.
      title: above it; empty if it is the only one.
      about: what it shows, for those who cannot see it.
    """

    chart: int
    title: str
    about: str


class ChartGroup(NamedTuple):
    """Charts that share a legend: the names of series 0, 1, ..., and those charts."""

    names: list[str]
    panels: list[Panel]


class Block(NamedTuple):
    """All charts of one quantity.

    Attributes:
      title: the quantity.
      shown: whether it is unfolded at first.
      parts: its charts, of at most :data:`LINES` lines each.
    """

    title: str
    shown: bool
    parts: list[ChartGroup]


def groups(runs: Sequence[ReportedRun]) -> list[Group]:
    """The runs by row and column, in their order."""
    found: dict[tuple[str, str], list[ReportedRun]] = {}
    for run in runs:
        found.setdefault((run.row, run.column), []).append(run)
    return [Group(row, column, tuple(same)) for (row, column), same in found.items()]


def choice_of(found: Sequence[Group]) -> str:
    """The accuracy by which rounds and settings are chosen: the same for all runs."""
    return choice_metric(*(run.history for group in found for run in group.drawn))


def blocks(found: Sequence[Group], target: float | None, drawing: list[dict[str, Any]]) -> list[Block]:
    """The charts of every quantity that the runs have.

    Args:
      found: the runs.
      target: accuracy to mark, in [0, 1], or None.
      drawing: the charts of the page, to which these are appended.
    """
    metric = choice_of(found)
    columns = {group.column for group in found}
    shown = {metric, TEST, "test_loss"} if len(columns) == 1 else {metric, TEST}
    made = []
    for measure in _measures(found):
        title, goal = metric_kinds.title(measure), target if measure == metric else None

        def chart(lines: Sequence[Line], axis: Scale, goal: float | None = goal) -> dict[str, Any]:
            return charts.curves(lines, axis, goal)

        lines = [(group, group.line(measure, 0)) for group in found]
        axis = charts.scale(title, [line for _, line in lines if line], kind(measure) is MetricKind.SHARE)
        made.append(block(title, measure in shown, lines, axis, chart, f"{title} over communication rounds", drawing))
    return made


def block(
    title: str,
    shown: bool,
    lines: Sequence[tuple[Group, Line | None]],
    axis: Scale,
    chart: Callable[[Sequence[Line], Scale], dict[str, Any]],
    about: str,
    drawing: list[dict[str, Any]],
) -> Block:
    """A chart for each setting, with a line for each of the groups that are compared in it.

    Args:
      title: the quantity.
      shown: whether it is unfolded at first.
      lines: of all groups, None of one that has none; their series are numbered here.
      axis: of all charts.
      chart: ``(lines, axis) -> chart``.
      about: what a chart shows, for those who cannot see it.
      drawing: the charts of the page, to which these are appended.
    """
    columns = list(dict.fromkeys(group.column for group, _ in lines))
    rows = list(dict.fromkeys(group.row for group, _ in lines))
    if len(rows) > LINES:
        metric = choice_of([group for group, _ in lines])
        best = {
            row: np.nan_to_num(np.nanmax([-1.0, *(g.final(metric) for g, _ in lines if g.row == row)])) for row in rows
        }
        rows.sort(key=lambda row: -best[row])
    parts = []
    for start in range(0, len(rows), LINES):
        names = rows[start : start + LINES]
        panels = []
        for column in columns:
            here = {group.row: line for group, line in lines if line and group.column == column}
            drawn = [here[row]._replace(series=series) for series, row in enumerate(names) if row in here]
            if drawn:
                drawing.append(chart(drawn, axis))
                where = f"{about}, {column}" if column else about
                panels.append(Panel(len(drawing) - 1, column if len(columns) > 1 else "", where))
        parts.append(ChartGroup(names, panels))
    return Block(title, shown, parts)


def _measures(found: Sequence[Group]) -> list[str]:
    """Quantities with one number for each evaluation that are not 0 throughout."""
    present: dict[str, bool] = {}
    for run in (run for group in found for run in group.drawn):
        for name in run.history:
            values = run.scalars(name)
            if values is not None and kind(name) is not MetricKind.COST:
                present[name] = present.get(name, False) or bool(np.any(np.nan_to_num(values)))
    shown = [name for name, nonzero in present.items() if nonzero]
    return [name for name in METRICS if name in shown] + [name for name in shown if name not in METRICS]
