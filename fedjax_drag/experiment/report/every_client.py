"""Accuracy of the final model client by client, and class by class."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.report import charts
from fedjax_drag.experiment.report.charts import Line, Scale
from fedjax_drag.experiment.report.curves import Block, Group, block
from fedjax_drag.experiment.report.reading import ReportedRun
from fedjax_drag.experiment.run import metric_kinds

_SHARES = np.linspace(0.0, 1.0, 101)
"""Of the clients, from the worst to the best, at which sorted accuracies are drawn."""

_FEW_CLASSES = 20  # each of which has a tick


def blocks(found: Sequence[Group], drawing: list[dict[str, Any]]) -> list[Block]:
    """The charts of runs whose clients were evaluated; none without such runs.

    Args:
      found: the runs.
      drawing: the charts of the page, to which these are appended.
    """
    wanted = (
        ("client_accuracy", _sorted, _over_clients, "the clients sorted from the worst to the best"),
        ("class_accuracy", lambda accuracy: accuracy, _over_classes, "by class"),
    )
    made = []
    for name, arranged, chart, how in wanted:
        lines = [(group, _line(group, name, arranged)) for group in found]
        drawn = [line for _, line in lines if line]
        if drawn:
            title = metric_kinds.title(name)
            axis = charts.scale(title, drawn, True)
            made.append(block(title, True, lines, axis, chart, f"final {title}, {how}", drawing))
    return made


def _line(group: Group, name: str, arranged: Callable[[np.ndarray], np.ndarray]) -> Line | None:
    """Mean over seeds in a band from their minimum to their maximum, of the last evaluation; None without one."""
    finals = [arranged(final) for run in group.drawn if (final := _final(run, name)) is not None]
    finals = [final for final in finals if final.shape == finals[0].shape]
    if not finals:
        return None
    stacked = np.stack(finals)
    x = _SHARES if name == "client_accuracy" else np.arange(stacked.shape[1])
    spread = (stacked.min(0), stacked.max(0)) if len(finals) > 1 else (None, None)
    return Line(group.row, 0, x, stacked.mean(0), *spread)


def _final(run: ReportedRun, name: str) -> np.ndarray | None:
    """The last evaluation of a metric with several numbers; None without a finite one."""
    found = run.history.get(name)
    if found is None or found.ndim != 2 or not np.isfinite(found[-1]).any():
        return None
    return found[-1]


def _sorted(accuracy: np.ndarray) -> np.ndarray:
    return np.quantile(accuracy[np.isfinite(accuracy)], _SHARES)


def _over_clients(lines: Sequence[Line], axis: Scale) -> dict[str, Any]:
    chart = charts.curves(lines, axis)
    chart["layout"]["xaxis"] = {
        "unifiedhovertitle": {"text": "worst %{x} of the clients"},
        "title": {"text": "clients, from the worst to the best"},
        "range": [0.0, 1.02],
        "tickformat": ".0%",
    }
    return chart


def _over_classes(lines: Sequence[Line], axis: Scale) -> dict[str, Any]:
    chart = charts.curves(lines, axis)
    last = max(len(line.x) for line in lines) - 1
    chart["layout"]["xaxis"] = {
        "unifiedhovertitle": {"text": "class %{x}"},
        "title": {"text": "class"},
        "range": [-0.5, last + 0.5],
        "showgrid": False,
    }
    if last < _FEW_CLASSES:
        chart["layout"]["xaxis"]["dtick"] = 1
    for trace in chart["data"]:
        trace.get("marker", {}).pop("maxdisplayed", None)
    return chart
