"""The final accuracy against the values of a numeric axis that is a choice: step size, a parameter of the rule."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.config.config import is_condition
from fedjax_drag.experiment.report import charts
from fedjax_drag.experiment.report.charts import Line, Scale
from fedjax_drag.experiment.report.curves import Block, Group, block, choice_of, groups
from fedjax_drag.experiment.report.reading import Found, ReportedRun
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.sweep import outcome_table

_DECADE = 10.0  # a logarithmic axis has one at least
_TICKS = 12  # most values that are ticks themselves


def numeric(found: Found) -> list[str]:
    """The axes of a sweep whose values are numbers, and choices of whoever trains."""
    axes = {} if found.grid is None else found.grid.labels
    return [
        axis
        for axis, values in axes.items()
        if axis != "seed" and not is_condition(axis) and len(values) > 1 and all(map(_is_number, values))
    ]


def blocks(found: Found, drawing: list[dict[str, Any]]) -> list[Block]:
    """The chart of a sweep with one numeric axis; none without.

    A line for each combination of the other choices, in a chart for each condition; a line for each condition where
    there is no other choice.

    Args:
      found: the sweep.
      drawing: the charts of the page, to which these are appended.
    """
    axes = numeric(found)
    if len(axes) != 1 or found.grid is None:
        return []
    (axis,), grid = axes, found.grid
    others = [other for other in grid.axes if other not in ("seed", axis)]
    choices, conditions = ([x for x in others if is_condition(x) is wanted] for wanted in (False, True))
    by, over = (choices, conditions) if choices else (conditions, [])
    lines: dict[tuple[str, str], list[ReportedRun]] = {}
    for run in found.runs:
        names = outcome_table.setting(grid, run.values, by), outcome_table.setting(grid, run.values, over)
        lines.setdefault((names[0] or found.name, names[1]), []).append(run)
    metric = choice_of(groups(found.runs))
    drawn = [(Group(*names, tuple(runs)), _line(names[0], runs, axis, metric)) for names, runs in lines.items()]
    title = metric_kinds.title(metric)
    scale = charts.scale(f"final {title}", [line for _, line in drawn if line], True)

    def chart(shown: Sequence[Line], scale: Scale) -> dict[str, Any]:
        return _chart(shown, scale, axis, outcome_table.texts(grid.labels[axis]))

    return [block(f"Final {title} by {axis}", True, drawn, scale, chart, f"final {title} by {axis}", drawing)]


def _line(name: str, runs: Sequence[ReportedRun], axis: str, metric: str) -> Line | None:
    """Mean over seeds in a band from their minimum to their maximum; None without a run that has begun."""
    finals: dict[float, tuple[float, ...]] = {}
    for value in sorted({float(run.values[axis]) for run in runs}):
        (group,) = groups([run for run in runs if float(run.values[axis]) == value]) or (None,)
        if group is not None and group.drawn:
            finals[value] = tuple(float(run.history[metric][-1]) for run in group.drawn)
    if not finals:
        return None
    x, y = np.array(list(finals)), list(finals.values())
    mean, low, high = (np.array([reduced(same) for same in y]) for reduced in (np.mean, np.min, np.max))
    spread = (low, high) if max(map(len, y)) > 1 else (None, None)
    return Line(name, 0, x, mean, *spread)


def _chart(lines: Sequence[Line], scale: Scale, axis: str, texts: dict[Any, str]) -> dict[str, Any]:
    chart = charts.curves(lines, scale)
    values = np.array(sorted(texts), float)
    log = is_logarithmic(values)
    places = np.log10(values) if log else values
    margin = 0.04 * float(np.ptp(places))
    ticks = values[charts.thinned(len(values), _TICKS)]
    chart["layout"]["xaxis"] = {
        "unifiedhovertitle": {"text": f"{charts.text(axis)} %{{x}}"},
        "title": {"text": charts.text(axis) + " (log scale)" * log},
        "type": "log" if log else "linear",
        "range": [float(places[0]) - margin, float(places[-1]) + margin],
        "tickvals": ticks.tolist(),
        "ticktext": [charts.text(texts[value]) for value in ticks.tolist()],
    }
    for trace, line in zip([t for t in chart["data"] if "name" in t], lines, strict=True):
        trace["marker"].pop("maxdisplayed")
        if "error_y" in trace:
            trace["error_y"] = charts.whiskers(line, np.arange(len(line.x)), most=len(line.x))
    return chart


def is_logarithmic(values: np.ndarray) -> bool:
    """Whether ascending values span a decade and are more evenly spaced in their logarithms."""
    if values[0] <= 0.0 or values[-1] < _DECADE * values[0]:
        return False
    steps = (np.diff(x) for x in (np.log(values), values))
    logarithmic, linear = (np.std(step) / np.mean(step) for step in steps)
    return bool(logarithmic < linear)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
