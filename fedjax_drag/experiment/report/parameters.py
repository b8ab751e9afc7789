"""The final metric against the values of a numeric axis that is a choice: step size, a parameter of the rule."""

from typing import Any

import numpy as np

from fedjax_drag.experiment.plain import finite, grouped
from fedjax_drag.experiment.report import charts
from fedjax_drag.experiment.report.charts import Line
from fedjax_drag.experiment.report.curves import Block, Group, block, criterion_of, groups
from fedjax_drag.experiment.report.reading import Found
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.sweep import outcome_table

_DECADE = 10.0  # a logarithmic axis has one at least
_TICKS = 12  # most values that are ticks themselves


def numeric(found: Found) -> list[str]:
    """The axes of a sweep whose values are numbers, and choices of whoever trains."""
    if found.grid is None:
        return []
    choices = {axis: found.grid.labels[axis] for axis in outcome_table.divided(found.grid)[0]}
    return [axis for axis, values in choices.items() if len(values) > 1 and None not in map(finite, values)]


def blocks(found: Found) -> list[Block]:
    """The chart of a sweep with one numeric axis; none without.

    A line for each combination of the other choices, in a chart for each condition; a line for each condition where
    there is no other choice.
    """
    axes = numeric(found)
    if len(axes) != 1 or found.grid is None:
        return []
    (axis,), grid = axes, found.grid
    choices, conditions = ([other for other in side if other != axis] for side in outcome_table.divided(grid))
    by, over = (choices, conditions) if choices else (conditions, [])
    named = lambda run: tuple(outcome_table.setting(grid, run.values, axes) for axes in (by, over))
    criterion = criterion_of(groups(found.runs))
    title = f"final {metric_kinds.title(criterion.column)}"
    drawn = []
    for (row, column), runs in grouped(found.runs, named).items():
        group = Group(row or found.name, column, tuple(runs))
        drawn.append((group, _line(group, axis, criterion.column)))
    made = block(
        title, drawn, f"{title} by {axis}", criterion.is_share, _axis(axis, outcome_table.texts(grid.labels[axis]))
    )
    return [one._replace(title=f"{title} by {axis}") for one in made]


def _line(group: Group, axis: str, metric: str) -> Line | None:
    """The metric at the end by value, over the seeds; None without a run that has begun."""
    by_value = grouped(group.runs, lambda run: float(run.values[axis]))
    ended = {value: Group("", "", tuple(by_value[value])).finals(metric) for value in sorted(by_value)}
    finals = {value: same for value, same in ended.items() if same}
    return charts.over_seeds(group.row, np.array(list(finals)), finals.values()) if finals else None


def _axis(name: str, texts: dict[Any, str]) -> dict[str, Any]:
    values = np.array(sorted(texts), float)
    log = is_logarithmic(values)
    places = np.log10(values) if log else values
    margin = 0.04 * float(np.ptp(places))
    ticks = values[charts.thinned(len(values), _TICKS)].tolist()
    return charts.axis_title(charts.text(name) + " (log scale)" * log, charts.text(name)) | {
        "type": "log" if log else "linear",
        "range": [float(places[0]) - margin, float(places[-1]) + margin],
        "tickvals": ticks,
        "ticktext": [charts.text(texts[value]) for value in ticks],
    }


def is_logarithmic(values: np.ndarray) -> bool:
    """Whether ascending values span a decade and are more evenly spaced in their logarithms."""
    if values[0] <= 0.0 or values[-1] < _DECADE * values[0]:
        return False
    steps = (np.diff(x) for x in (np.log(values), values))
    logarithmic, linear = (np.std(step) / np.mean(step) for step in steps)
    return bool(logarithmic < linear)
