"""Test accuracy against rounds, one line per method with a band over seeds."""

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, PercentFormatter
from tqdm import tqdm

from fedjax_drag.experiment.config.config import Config, flatten
from fedjax_drag.experiment.figures.labels import clean, method, shared
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.results import Run

FORMATS = (".png", ".pdf", ".svg")
"""File name suffixes that can be drawn."""

_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, 2008
_STYLES = ("-", "--", "-.", ":")
_INK, _MUTED, _GRID = "#222222", "#6B6B6B", "#E4E4E4"
_TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "digits": "handwritten digits (8x8)",
    "synthetic": "synthetic data",
}
_FRAME = (0.1, 0.125, 0.86, 0.71)  # of the axes, in parts of the figure, before labels take their share
_LABEL_GAP = 0.052  # of the axis' height: one line of label text


@dataclasses.dataclass(frozen=True)
class _Curve:
    """One line of the plot: mean and range over runs that differ only by seed."""

    label: str
    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_runs: int


def plot(runs: Iterable[str | Path], path: str | Path) -> Path:
    """Draws test accuracy against communication rounds.

    Runs that differ only by seed share a line, their mean, in a band from their minimum to their
    maximum. The folder of a comparison stands for all the runs in it.

    Args:
      runs: results folders.
      path: image to write; its suffix (``.png``, ``.pdf`` or ``.svg``) is the format.

    What is missing, because a run has no evaluation yet or a line of its file cannot be read, is said on standard
    error.

    Returns:
      The path of the image.

    Raises:
      FileNotFoundError: a folder or its configuration does not exist.
      ValueError: no runs, another suffix, or a configuration that is not valid.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(f"output {str(target)!r}: must end in {', '.join(FORMATS)}")
    read = [run for folder in runs for run in results.read(Path(folder))]
    if not read:
        raise ValueError("runs=[]: must name at least one results folder")
    for note in filter(None, (run.note for run in read)):
        tqdm.write(note, file=sys.stderr)
    figure = draw(read)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=160)
    return target


def draw(runs: Sequence[Run]) -> Figure:
    """The figure that :func:`plot` writes, from runs already read; runs without an evaluation have no line."""
    runs = [run for run in runs if run.history]
    figure = Figure(figsize=(8.0, 4.8), facecolor="white")
    if not runs:
        figure.text(0.5, 0.5, "no evaluation yet", color=_MUTED, ha="center", va="center", fontsize=13.5)
        return figure
    curves = _curves(runs)
    axes = figure.add_axes(_FRAME)
    for index, curve in enumerate(curves):
        color = _PALETTE[index % len(_PALETTE)]
        style = _STYLES[index // len(_PALETTE) % len(_STYLES)]
        if curve.num_runs > 1:
            axes.fill_between(curve.rounds, curve.low, curve.high, color=color, alpha=0.16, linewidth=0)
        marker = "o" if len(curve.rounds) == 1 else ""
        axes.plot(curve.rounds, curve.mean, style, color=color, marker=marker, linewidth=2, solid_capstyle="round")
    _dress(axes, curves)
    texts = _label_lines(axes, curves)
    widest = max(text.get_window_extent().width for text in texts) / figure.bbox.width
    axes.set_position((*_FRAME[:2], _FRAME[2] - min(widest, 0.5), _FRAME[3]))
    _head(figure, runs, curves)
    return figure


def _curves(runs: Sequence[Run]) -> list[_Curve]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_identity(run.config), []).append(run)
    labels = _labels([group[0].config for group in groups.values()])
    return [_curve(label, group) for label, group in zip(labels, groups.values(), strict=True)]


def _identity(config: Config) -> str:
    """Equal for configurations that differ only by seed."""
    return json.dumps({key: value for key, value in flatten(config).items() if key != "seed"}, sort_keys=True)


def _labels(configs: Sequence[Config]) -> list[str]:
    """Names of the lines; where names repeat, the keys by which their configurations differ are added."""
    repeated = {name for name, times in Counter(config.name for config in configs).items() if times > 1}
    flat = [flatten(config) for config in configs]
    labels = []
    for config, mine in zip(configs, flat, strict=True):
        label = config.name
        if config.name in repeated:
            others = [other for other in flat if other["name"] == config.name]
            differing = [k for k in mine if k != "seed" and any(other.get(k) != mine[k] for other in others)]
            label += " " + ", ".join(f"{key.removesuffix('.name')}={mine[key]}" for key in differing)
        labels.append(clean(label, 40))
    return labels


def _curve(label: str, group: Sequence[Run]) -> _Curve:
    rounds = group[0].history["round"]
    for run in group[1:]:
        rounds = np.intersect1d(rounds, run.history["round"])
    if not rounds.size:
        raise ValueError(f"{str(group[-1].folder)!r}: no evaluation in a round in which the other seeds have one")
    stacked = np.stack([run.history["test_accuracy"][np.isin(run.history["round"], rounds)] for run in group])
    return _Curve(label, rounds, stacked.mean(0), stacked.min(0), stacked.max(0), len(group))


def _dress(axes: Axes, curves: Sequence[_Curve]) -> None:
    """Axes, grid and limits."""
    finite = [part[np.isfinite(part)] for curve in curves for part in (curve.low, curve.high)]
    values = np.clip(np.concatenate(finite), 0, 1)
    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    bottom = 0.0 if low < 0.4 else np.floor(low * 10 - 0.5) / 10
    axes.set_ylim(max(bottom, 0.0), min(1.0, high + 0.06 * (high - bottom) + 0.005))
    first = min(curve.rounds[0] for curve in curves)
    last = max(curve.rounds[-1] for curve in curves)
    axes.set_xlim(0 if first <= 0.2 * last else first, last if last > first else last + 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("Communication round", color=_INK, fontsize=10.5, labelpad=6)
    axes.set_ylabel("Test accuracy", color=_INK, fontsize=10.5, labelpad=6)
    axes.grid(axis="y", color=_GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#9A9A9A")
    axes.tick_params(axis="x", color="#9A9A9A", labelcolor=_INK, length=4)
    axes.tick_params(axis="y", length=0, labelcolor=_INK)


def _label_lines(axes: Axes, curves: Sequence[_Curve]) -> list[Text]:
    """Names the lines at their right ends, with their final accuracy, moved apart where they would overlap."""
    bottom, top = axes.get_ylim()
    ends = [float(np.clip(np.nan_to_num(curve.mean[-1]), bottom, top) - bottom) / (top - bottom) for curve in curves]
    x_low, x_high = axes.get_xlim()
    texts = []
    for index, (curve, end, place) in enumerate(zip(curves, ends, _spread(ends, _LABEL_GAP), strict=True)):
        color = _PALETTE[index % len(_PALETTE)]
        x_end = float((curve.rounds[-1] - x_low) / (x_high - x_low))
        line = {"color": color, "linewidth": 0.9, "clip_on": False, "alpha": 0.75}
        axes.plot([x_end + 0.003, 1.018], [end, place], transform=axes.transAxes, **line)
        final = f"{curve.mean[-1]:.1%}" if np.isfinite(curve.mean[-1]) else "not finite"
        text = axes.text(1.024, place, f"{curve.label}  {final}", transform=axes.transAxes, color=color)
        text.set(fontsize=10, fontweight="bold", va="center", parse_math=False)
        texts.append(text)
    return texts


def _spread(places: Sequence[float], gap: float) -> np.ndarray:
    """The positions nearest to ``places`` (least squares), in their order, at least ``gap`` apart."""
    from scipy.optimize import isotonic_regression

    # Equal ends keep the order in which they are listed, from the top down.
    order = np.lexsort((-np.arange(len(places)), np.asarray(places)))
    steps = gap * np.arange(len(places))
    spread = np.empty(len(places))
    spread[order] = isotonic_regression(np.asarray(places)[order] - steps).x + steps
    below = min(0.0, 1.02 - spread.max())
    return spread + max(below, -0.02 - spread.min()) if below else spread + max(0.0, -0.02 - spread.min())


def _head(figure: Figure, runs: Sequence[Run], curves: Sequence[_Curve]) -> None:
    """Title, and a line with what all runs share."""
    left = _FRAME[0]
    names = list(dict.fromkeys(_TITLES.get(run.config.data.name, run.config.data.name) for run in runs))
    whose = f" of {method(runs[0].config)}" if len(curves) == 1 else ""
    title = figure.text(left, 0.945, clean(f"Test accuracy{whose} on {', '.join(names)}", 80), color=_INK)
    title.set(fontsize=13.5, fontweight="bold", va="center", parse_math=False)
    below = figure.text(left, 0.893, clean(shared([run.config for run in runs]), 130), color=_MUTED)
    below.set(fontsize=9.5, va="center", parse_math=False)
    counts = sorted({curve.num_runs for curve in curves})
    if counts[-1] > 1:
        number = str(counts[-1]) if len(counts) == 1 else f"up to {counts[-1]}"
        note = figure.text(0.985, 0.022, f"line: mean over {number} seeds; band: minimum to maximum", color=_MUTED)
        note.set(fontsize=8.5, ha="right", va="bottom")
