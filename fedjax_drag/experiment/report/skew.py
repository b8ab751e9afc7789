"""How the data of the runs are spread over clients and classes, made again from their configurations."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_drag.checks import message_of
from fedjax_drag.data.skew import SkewReport
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.plain import grouped
from fedjax_drag.experiment.report.charts import Chart
from fedjax_drag.experiment.report.curves import Panel
from fedjax_drag.experiment.report.reading import ReportedRun
from fedjax_drag.experiment.run.planning import Federations

SPLITS = 4
"""Most splits that are shown."""

CLIENTS = 1000
"""Most clients of a heat map."""

_COLORS = ("#ffffd9", "#c7e9b4", "#41b6c4", "#225ea8", "#081d58")
_SCALE = [[(i / 4) ** 2, color] for i, color in enumerate(_COLORS)]  # grows with the square root of the count


def splits(runs: Sequence[ReportedRun]) -> tuple[list[tuple[Panel, str]], str]:
    """The different splits of the first seed, each with what is to be said, and a note if some or all are missing."""
    first = min(run.config.seed for run in runs)
    source = lambda config: json.dumps([config.data.to_mapping(), config.partition.to_mapping()], default=str)
    different = grouped((run.config for run in runs if run.config.seed == first), source)
    made, federations = [], Federations()
    for config, *_ in [*different.values()][:SPLITS]:
        here = {name: value for name, value in config.data.arguments.items() if name != "allow_download"}
        local = dataclasses.replace(config, data=dataclasses.replace(config.data, arguments=here))
        try:
            fed = federations.split(resolve(local))
            if not fed.has_labels:
                return made, "Not shown, since an example has no single class."
            report = fed.skew_report()
        except (ValueError, OSError, ImportError) as error:
            return made, f"Not shown, since the data cannot be had here: {message_of(error)}"
        about = f"examples by client and class: {report.title}"
        made.append((Panel(_heat_map(report), f"{report.title}, seed {config.seed}", about), _note(report)))
    left = len(different) - SPLITS
    return made, f"{left} more splits are not shown." if left > 0 else ""


def _heat_map(report: SkewReport) -> Chart:
    """Clients by classes; no colour means none."""
    counts = report.counts[:CLIENTS].T
    heat: dict[str, Any] = {
        "type": "heatmap",
        "z": [[int(count) or None for count in row] for row in counts],
        "meta": 0,
        "colorscale": _SCALE,
        "zmin": 0,
        "zmax": int(counts.max()) or 1,
        "hoverongaps": False,
        "hovertemplate": "client %{x}<br>class %{y}<br>%{z} examples<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "client"}, "showgrid": False, "zeroline": False},
        "yaxis": {"title": {"text": "class"}, "showgrid": False, "zeroline": False, "dtick": max(1, len(counts) // 20)},
        "height": int(np.clip(130 + 18 * len(counts), 240, 640)),
    }
    return {"data": [heat], "layout": layout}


def _note(report: SkewReport) -> str:
    def spread(values: np.ndarray) -> str:
        return f"{values.min():,} to {values.max():,}, median {np.median(values):,g}"

    clients = f"{len(report.counts):,} clients"
    shown = f"; the first {CLIENTS:,} are shown" if len(report.counts) > CLIENTS else ""
    sizes, classes = spread(report.sizes), spread(report.classes_per_client)
    return f"{clients}{shown}. Examples per client: {sizes}. Classes per client: {classes}."
