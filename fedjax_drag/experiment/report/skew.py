"""How the data of the runs are spread over clients and classes, made again from their configurations."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.data.formats.cache import kept_as_it_is
from fedjax_drag.data.skew import SkewReport
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.report import charts
from fedjax_drag.experiment.report.curves import Panel
from fedjax_drag.experiment.report.reading import ReportedRun
from fedjax_drag.experiment.run.planning import Federations

SPLITS = 4
"""Most splits that are shown."""

CLIENTS = 1000
"""Most clients of a heat map."""

_COLORS = [[0.0, "#ffffd9"], [0.25, "#c7e9b4"], [0.5, "#41b6c4"], [0.75, "#225ea8"], [1.0, "#081d58"]]


class SkewMap(NamedTuple):
    """A way in which the data were divided: its heat map and what is to be said about it."""

    panel: Panel
    note: str


def splits(runs: Sequence[ReportedRun], drawing: list[dict[str, Any]]) -> tuple[list[SkewMap], str]:
    """The different splits of the first seed, and a note if some or all are missing.

    Args:
      runs: the runs.
      drawing: the charts of the page, to which these are appended.
    """
    first = min(run.config.seed for run in runs)
    different = {
        json.dumps([run.config.data.to_mapping(), run.config.partition.to_mapping()], default=str): run
        for run in reversed(runs)
        if run.config.seed == first
    }
    made, federations = [], Federations()
    for run in [*reversed(different.values())][:SPLITS]:
        try:
            with kept_as_it_is():
                report = federations.split(resolve(_without_download(run.config))).skew_report()
        except (ValueError, OSError, ImportError) as error:
            return made, f"Not shown, since the data cannot be had here: {next(iter(str(error).splitlines()), '')}"
        drawing.append(_heat_map(report))
        panel = Panel(
            len(drawing) - 1, f"{report.title}, seed {run.config.seed}", f"examples by client and class: {report.title}"
        )
        made.append(SkewMap(panel, _note(report)))
    left = len(different) - SPLITS
    return made, f"{left} more splits are not shown." if left > 0 else ""


def _without_download(config: Config) -> Config:
    """A configuration whose data must be on this machine."""
    arguments = {name: value for name, value in config.data.arguments.items() if name != "allow_download"}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, arguments=arguments))


def _heat_map(report: SkewReport) -> dict[str, Any]:
    """Clients by classes; colours grow with the square root of the count, no colour means none."""
    counts = report.counts[:CLIENTS].T
    top = int(counts.max())
    ticks = np.unique((top * np.array([0.0, 0.0625, 0.25, 0.5625, 1.0])).round().astype(int))
    heat = {
        "type": "heatmap",
        "z": charts.numbers(np.where(counts > 0, np.sqrt(counts), np.nan), 4),
        "customdata": counts.tolist(),
        "meta": "customdata",  # what a file has
        "colorscale": _COLORS,
        "zmin": 0.0,
        "zmax": float(np.sqrt(top)) or 1.0,
        "hoverongaps": False,
        "hovertemplate": "client %{x}<br>class %{y}<br>%{customdata} examples<extra></extra>",
        "colorbar": {"tickvals": np.sqrt(ticks).tolist(), "ticktext": [f"{tick:,}" for tick in ticks]},
    }
    layout = {
        "xaxis": {"title": {"text": "client"}, "showgrid": False, "zeroline": False},
        "yaxis": {"title": {"text": "class"}, "showgrid": False, "zeroline": False, "dtick": max(1, len(counts) // 20)},
        "height": int(np.clip(130 + 18 * len(counts), 240, 640)),
    }
    return {"data": [heat], "layout": layout, "series": [0]}


def _note(report: SkewReport) -> str:
    def told(values: np.ndarray) -> str:
        return f"{values.min():,} to {values.max():,}, median {np.median(values):,g}"

    clients = f"{len(report.counts):,} clients"
    shown = f"; the first {CLIENTS:,} are shown" if len(report.counts) > CLIENTS else ""
    sizes, classes = told(report.sizes), told(report.classes_per_client)
    return f"{clients}{shown}. Examples per client: {sizes}. Classes per client: {classes}."
