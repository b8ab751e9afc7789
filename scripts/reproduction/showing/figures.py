"""The figure of a target: a metric over the rounds or over an axis, labelled as in the papers."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_drag.experiment.figures.plotting import label_in_percent
from fedjax_drag.experiment.sweep.outcome_table import COMPLETE
from reproduction.judging.outcome import Outcome
from reproduction.names import written
from reproduction.showing import printed
from reproduction.targets.target import Target

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")  # Okabe and Ito
_PRINTED = "the paper's figure"
"""Legend of the points that a paper prints."""
_QUANTITIES = {
    "test_accuracy": "Test accuracy",
    "client_accuracy_worst_tenth": "Client accuracy, worst tenth",
    "num_expelled": "Clients expelled",
    "round": "Communication round",
    "root_size": "Root examples",
    "step_size": "Step size",
}


def draw(target: Target, outcome: Outcome) -> Figure:
    """Draws a panel for each setting and a line for each method, with a band from minimum to maximum over seeds.

    What the paper prints of a line's course is drawn as diamonds in its colour.

    Args:
      target: says which axes are panels and lines.
      outcome: of the target; cells that did not run to the end are left out.
    """
    settings = [
        dict(zip(target.panels, labels, strict=True))
        for labels in itertools.product(*(outcome.labels(axis) for axis in target.panels))
    ]
    columns = min(len(settings), 2 if len(settings) == 4 else 4 if len(settings) % 4 == 0 else 3)
    rows = math.ceil(len(settings) / columns)
    figure = Figure(figsize=(4.2 * columns + 1.8, 3.2 * rows + 0.5), facecolor="white", layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey="row")
    for panel, setting, letter in itertools.zip_longest(panels.flat, settings, "abcdefghijklmnopqrstuvwxyz"):
        if panel is not None and setting is not None:
            title = ", ".join(written(axis, label) for axis, label in setting.items())
            panel.set_title(f"({letter}) {title}" if len(settings) > 1 else title, fontsize=10, loc="left")
            _panel(panel, target, outcome.at(setting), outcome.labels(target.lines))
        elif panel is not None:
            panel.set_visible(False)
    for panel in panels[:, 0]:
        panel.set_ylabel(_QUANTITIES[target.y])
    handles = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False, fontsize=9)
    figure.suptitle(f"{target.paper}, {target.place} ({target.name})", fontsize=11, fontweight="bold")
    return figure


def save(target: Target, outcome: Outcome, folder: Path) -> Path | None:
    """Writes the figure of a target into a folder and returns its path; None if no cell ran to the end."""
    if not any(cell.status in COMPLETE for cell in outcome.cells):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{target.name}.png"
    draw(target, outcome).savefig(path, dpi=150)
    return path


class _Series(NamedTuple):
    """A line and the band around it, from minimum to maximum over seeds."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _panel(panel: Axes, target: Target, part: Outcome, labels: Sequence[Any]) -> None:
    """Draws the lines of one setting; ``labels`` are those of all panels, so that a line has one colour in all."""
    series = _over_rounds if target.x == "round" else _over_axis
    for index, label in enumerate(labels):
        x, mean, low, high = series(target, part.at({target.lines: label}))
        if not len(x):
            continue
        color, style = _COLORS[index % len(_COLORS)], ("-", "--")[index // len(_COLORS) % 2]
        marker = "o" if len(x) == 1 or target.x != "round" else ""
        panel.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        panel.plot(x, mean, style, color=color, linewidth=1.6, label=written(target.lines, label), marker=marker)
        for theirs in printed.points(target, label):
            panel.plot(*theirs, "D", color=color, markerfacecolor="white", markersize=6, label=_PRINTED, clip_on=False)
    panel.set_xlabel(_QUANTITIES[target.x])
    if target.x == "round":
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    else:
        values = sorted(part.labels(target.x))
        panel.set_xscale("log")
        panel.set_xticks(values, [f"{value:,g}" for value in values])
        panel.minorticks_off()
    if target.y != "num_expelled":
        label_in_percent(panel)
    panel.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)


def _over_rounds(target: Target, line: Outcome) -> _Series:
    histories = [cell.history for cell in line.cells if cell.status in COMPLETE and target.y in cell.history]
    if not histories:
        return _Series(*[np.empty(0)] * 4)
    rounds, values = line.curves(target.y)
    return _Series(rounds, np.mean(values, axis=0), np.min(values, axis=0), np.max(values, axis=0))


def _over_axis(target: Target, line: Outcome) -> _Series:
    points = []
    for value in sorted(line.labels(target.x)):
        cells = [cell for cell in line.at({target.x: value}).cells if cell.status in COMPLETE]
        levels = [Outcome((cell,)).level(target.y) for cell in cells if target.y in cell.history]
        if levels:
            points.append((value, np.mean(levels), min(levels), max(levels)))
    return _Series(*np.reshape(points, (-1, 4)).T)
