"""Runs as lines with bands over seeds: over rounds, clients, classes and a parameter, a chart for each setting."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.plain import finite, grouped
from fedjax_drag.experiment.report import charts
from fedjax_drag.experiment.report.charts import Chart, Line
from fedjax_drag.experiment.report.reading import Found, Group
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.run.metric_kinds import METRICS, MetricKind, kind
from fedjax_drag.experiment.sweep import outcome_table
from fedjax_drag.experiment.sweep.choice import place_of_best
from fedjax_drag.simulation.criterion import Criterion

LINES = 8
"""Lines in a chart; more are divided among charts, the best first."""

_SHARES = np.linspace(0.0, 1.0, 101)  # of the clients, from the worst to the best, at which metrics are drawn
_FEW_CLASSES = 20  # each of which has a tick
_DECADE = 10.0  # a logarithmic axis has one at least
_TICKS = 12  # most values of a parameter that are ticks themselves


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


def best_setting(found: Found, crossed: bool) -> list[Group]:
    """The groups of the setting that is best, as the summary of a sweep chooses it; none without a figure.

    Args:
      found: the runs.
      crossed: whether columns are conditions, and a row is a setting; else each group is one.
    """
    by, settings = found.criterion, [*grouped(found.groups, lambda one: (one.row, crossed or one.column)).values()]
    worst = np.array([by.worst([one.final(by.column) for one in same]) for same in settings])
    place = place_of_best(worst, [{run.status for one in same for run in one.runs} for same in settings], by)
    return [] if place is None else settings[place]


def over_rounds(found: Found, target: float | None) -> list[Block]:
    """The charts of every quantity that the runs have over rounds; ``target`` is of their criterion, or None."""
    by = found.criterion
    shown = {by.column, by.test} | ({"test_loss"} if len({group.column for group in found.groups}) == 1 else set())
    made = []
    for measure in _measures(found.groups, by.test):
        is_share = by.is_share if measure in (by.column, by.test) else kind(measure) is MetricKind.SHARE
        title = metric_kinds.title(measure)
        lines = [(group, _over_rounds(group, measure)) for group in found.groups]
        aim = target if measure == by.column else None
        blocks = _block(title, lines, f"{title} over communication rounds", is_share, by, target=aim)
        made += [one._replace(shown=measure in shown) for one in blocks]
    return made


def every_client(found: Found) -> list[Block]:
    """The final model client by client and class by class, by its accuracy or what else the criterion is.

    There is none where clients were not evaluated.
    """
    by = found.criterion
    worst_first = np.sort if by.higher_is_better else lambda values: -np.sort(-values)
    lines = [(group, _last(group, f"client_{by.name}", worst_first)) for group in found.groups]
    title = metric_kinds.title(f"client_{by.name}")
    axis = charts.axis_title("clients, from the worst to the best", "worst")
    axis |= {"range": [0.0, 1.02], "tickformat": ".0%"}
    about = f"final {title}, the clients sorted from the worst to the best"
    made = _block(title, lines, about, by.is_share, by, axis)
    lines = [(group, _last(group, "class_accuracy")) for group in found.groups]
    title = metric_kinds.title("class_accuracy")
    classes = max((len(line.x) for _, line in lines if line), default=0)
    axis = charts.axis_title("class", "class") | {"range": [-0.5, classes - 0.5], "showgrid": False}
    axis |= {"dtick": 1} if classes <= _FEW_CLASSES else {}
    return made + _block(title, lines, f"final {title}", True, by, axis)


def numeric(found: Found) -> list[str]:
    """The axes of a sweep whose values are numbers, and choices of whoever trains."""
    if found.grid is None:
        return []
    choices = {axis: found.grid.labels[axis] for axis in outcome_table.divided(found.grid)[0]}
    return [axis for axis, values in choices.items() if len(values) > 1 and None not in map(finite, values)]


def by_parameter(found: Found) -> list[Block]:
    """The chart of the final metric against the values of the one numeric axis of a sweep; none without.

    A line for each combination of the other choices, in a chart for each condition; a line for each condition where
    there is no other choice.
    """
    axes = numeric(found)
    if len(axes) != 1 or found.grid is None:
        return []
    (axis,), grid = axes, found.grid
    choices, conditions = ([other for other in side if other != axis] for side in outcome_table.divided(grid))
    sides = (choices, conditions) if choices else (conditions, [])
    named = lambda run: tuple(outcome_table.setting(grid, run.values, axes) for axes in sides)
    by = found.criterion
    title = f"final {metric_kinds.title(by.column)}"
    about = f"{title} by {axis}"
    groups = [Group(row or found.name, over, tuple(runs)) for (row, over), runs in grouped(found.runs, named).items()]
    lines = [(group, _by_value(group, axis, by.column)) for group in groups]
    made = _block(title, lines, about, by.is_share, by, _axis(axis, outcome_table.texts(grid.labels[axis])))
    return [one._replace(title=about) for one in made]


def _block(
    title: str,
    lines: Sequence[tuple[Group, Line | None]],
    about: str,
    percent: bool,
    by: Criterion,
    xaxis: dict[str, Any] | None = None,
    target: float | None = None,
) -> list[Block]:
    """A chart for each setting, with a line for each of the groups that are compared in it; none without lines.

    Args:
      title: the quantity.
      lines: of all groups, None of one that has none; their series are numbered here.
      about: what a chart shows, for those who cannot see it.
      percent: whether the values are shares.
      by: of the runs, for the order of many lines.
      xaxis: the horizontal axis; default communication rounds.
      target: where a dotted line is drawn, or None.
    """
    if not any(line for _, line in lines):
        return []
    yaxis = charts.vertical_axis(title, [line for _, line in lines if line], percent)
    columns = list(dict.fromkeys(group.column for group, _ in lines))
    rows = list(dict.fromkeys(group.row for group, _ in lines))
    if len(rows) > LINES:
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


def _over_rounds(group: Group, measure: str) -> Line | None:
    """A quantity at the rounds that all runs have; None if they do not have it, or no round in common."""
    found = [(run.history["round"], y) for run in group.drawn if (y := run.scalars(measure)) is not None]
    rounds = reduce(np.intersect1d, [x for x, _ in found]) if found else np.zeros(0)
    if not rounds.size:
        return None
    return charts.over_seeds(group.row, rounds, np.transpose([y[np.isin(x, rounds)] for x, y in found]))


def _by_value(group: Group, axis: str, metric: str) -> Line | None:
    """The metric at the end by the value of an axis, over the seeds; None without a run that has begun."""
    by_value = grouped(group.runs, lambda run: float(run.values[axis]))
    ended = {value: Group("", "", tuple(by_value[value])).finals(metric) for value in sorted(by_value)}
    finals = {value: same for value, same in ended.items() if same}
    return charts.over_seeds(group.row, np.array(list(finals)), finals.values()) if finals else None


def _axis(name: str, texts: dict[Any, str]) -> dict[str, Any]:
    values = np.array(sorted(texts), float)
    log = _is_logarithmic(values)
    places = np.log10(values) if log else values
    margin = 0.04 * float(np.ptp(places))
    ticks = values[charts.thinned(len(values), _TICKS)].tolist()
    return charts.axis_title(charts.text(name) + " (log scale)" * log, charts.text(name)) | {
        "type": "log" if log else "linear",
        "range": [float(places[0]) - margin, float(places[-1]) + margin],
        "tickvals": ticks,
        "ticktext": [charts.text(texts[value]) for value in ticks],
    }


def _is_logarithmic(values: np.ndarray) -> bool:
    """Whether ascending values span a decade and are more evenly spaced in their logarithms."""
    if values[0] <= 0.0 or values[-1] < _DECADE * values[0]:
        return False
    steps = (np.diff(x) for x in (np.log(values), values))
    logarithmic, linear = (np.std(step) / np.mean(step) for step in steps)
    return bool(logarithmic < linear)


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
