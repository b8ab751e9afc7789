"""A metric against rounds, or what they cost, as an image: one line per method with a band over seeds."""

import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, MaxNLocator
from tqdm import tqdm

from fedjax_drag.experiment.figures.labels import clean, data_title, method, shared
from fedjax_drag.experiment.figures.series import ROUND, Curve, curves, given_labels, judged_by, measured
from fedjax_drag.experiment.figures.style import GRID, INK, save, spread
from fedjax_drag.experiment.run import metric_kinds, results
from fedjax_drag.experiment.run.metric_kinds import MetricKind
from fedjax_drag.experiment.run.results import StoredRun
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import load_grid

FORMATS = (".png", ".pdf", ".svg")
"""File name suffixes that can be drawn."""

_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, 2008
_STYLES = ("-", "--", "-.", ":")
_MUTED = "#6B6B6B"
_SIZE = (8.0, 4.8)  # in inches; the image grows by the names beside or below it
_FRAME = (0.1, 0.125, 0.86, 0.71)  # of the axes, in parts of the figure
_LABEL_GAP = 0.052  # of the axis' height: one line of label text
_WIDEST = 0.3  # of the figure: labels beside the lines; wider ones go below
_NEAR = 0.5  # of the width of the axes: where the shortest line must end for that
_COLUMNS = 3  # of a legend below the axes at most
_LOG_RATIO = 100.0  # positive values that reach over more have a logarithmic axis


def plot(
    runs: Iterable[str | Path],
    path: str | Path,
    *,
    metric: str | None = None,
    against: str = ROUND,
    labels: Sequence[str] = (),
    title: str | None = None,
) -> Path:
    """Draws a metric against communication rounds, or against what they cost.

    Runs that differ only by seed share a line, their mean, in a band from their minimum to their
    maximum, up to the round that all of them have reached. The folder of a comparison or of a sweep stands for all the
    runs in it that have begun.

    Args:
      runs: results folders.
      path: image to write; its suffix (``.png``, ``.pdf`` or ``.svg``) is the format.
      metric: a column of the histories with one number for each evaluation; default what the runs are judged by on the
        test examples, ``test_accuracy`` unless their configuration says otherwise.
      against: the column on the horizontal axis, such as ``bytes_up`` or ``epsilon``. Costs are added up over the
        rounds; a line whose cost has no bound is drawn level, at its last value.
      labels: names of the lines, one for each folder or ``LABEL=DIR``; default what differs between the runs. The
        label of a comparison precedes those of its runs.
      title: the headline; default the metric and the data set.

    What is missing, because a run has no evaluation yet, lacks the metric or a line of its file cannot be read, is
    said on standard error.

    Returns:
      The path of the image.

    Raises:
      FileNotFoundError: a folder or its configuration does not exist.
      ValueError: no runs, another suffix, a configuration that is not valid, a metric that no run has, or another
        number of labels than of runs.
    """
    target = Path(path)
    check_format(target)
    folders = [Path(run) for run in runs]
    drawn: list[StoredRun] = []
    given: list[str | None] = []
    for folder, label in zip(folders, given_labels(labels, folders), strict=True):
        found = read(folder)
        drawn += found
        given += [label and f"{label}, {run.config.name}" for run in found] if len(found) > 1 else [label]
    if not drawn:
        raise ValueError("runs=[]: must name at least one results folder")
    metric = metric or judged_by(drawn)
    figure = draw(drawn, metric, given, title, against)
    for run in drawn:
        lacking = [name for name in (metric, against) if run.history and name not in run.history]
        for note in filter(None, (run.note, *(f"{str(run.folder)!r}: has no {name}" for name in lacking))):
            tqdm.write(note, file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    save(figure, target)
    return target


def check_format(output: Path) -> None:
    """Refuses the path of an image in a format that is not offered."""
    if output.suffix.lower() not in FORMATS:
        raise ValueError(f"output {str(output)!r}: must end in {', '.join(FORMATS)}")


def read(folder: Path) -> list[StoredRun]:
    """A run, or those of a comparison or of a sweep in the order of its configuration."""
    if not (folder / sweep_folder.CONFIG).is_file():
        return results.read(folder)
    cells = [folder / sweep_folder.CELLS / point.folder for point in load_grid(folder / sweep_folder.CONFIG).points]
    begun = [run for cell in cells if (cell / results.CONFIG).is_file() for run in results.read(cell)]
    if not begun:
        raise ValueError(f"{str(folder)!r}: no cell of this sweep has begun")
    return begun


def draw(
    runs: Sequence[StoredRun],
    metric: str | None = None,
    given: Sequence[str | None] | None = None,
    title: str | None = None,
    against: str = ROUND,
) -> Figure:
    """The figure that :func:`plot` writes, from runs already read; runs without an evaluation have no line.

    Args:
      runs: the runs.
      metric: a column of their histories; default what they are judged by.
      given: the label of each run, or None for one that says what differs.
      title: the headline, or None for one made from the runs.
      against: the column on the horizontal axis.
    """
    metric = metric or judged_by(runs)
    kept = measured(runs, metric, against)
    drawn = [*itertools.compress(runs, kept)]
    figure = Figure(figsize=_SIZE, facecolor="white")
    if not drawn:
        figure.text(0.5, 0.5, "no evaluation yet", color=_MUTED, ha="center", va="center", fontsize=13.5)
        return figure
    lines = curves(drawn, metric, [*itertools.compress(given or [None] * len(runs), kept)], against)
    axes = figure.add_axes(_FRAME)
    handles = [_draw(axes, index, line) for index, line in enumerate(lines)]
    _dress(axes, lines, metric, against)
    ends = [f"{line.label}  {_written(line.mean[-1], metric)}" for line in lines]
    texts = _label_ends(axes, lines, ends)
    widest = max(text.get_window_extent().width for text in texts) / figure.bbox.width
    nearest = min(_place(axes, line)[0] for line in lines)
    if widest > _WIDEST or len(lines) * _LABEL_GAP > 1 or nearest < _NEAR:
        for artist in (*texts, *axes.lines[len(lines) :]):
            artist.remove()
        _legend(axes, handles, ends)
    _head(figure, drawn, lines, metric, title)
    return figure


def _draw(axes: Axes, index: int, line: Curve) -> Line2D:
    """A line and its band; level, at its last value, where it has no place on the horizontal axis."""
    color = _PALETTE[index % len(_PALETTE)]
    style = _STYLES[index // len(_PALETTE) % len(_STYLES)]
    if not line.has_place:
        return axes.axhline(line.mean[-1], linestyle=":", color=color, linewidth=2)
    if line.num_runs > 1:
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.16, linewidth=0)
    marker = "o" if len(line.x) == 1 else ""
    (drawn,) = axes.plot(line.x, line.mean, style, color=color, marker=marker, linewidth=2)
    drawn.set_solid_capstyle("round")
    return drawn


def _dress(axes: Axes, lines: Sequence[Curve], metric: str, against: str) -> None:
    """Axes, grid and limits."""
    drawn = [part for line in lines for part in ((line.low, line.high) if line.has_place else (line.mean[-1:],))]
    parts = [part[np.isfinite(part)] for part in drawn]
    _limit(axes, np.concatenate(parts), metric)
    _limit_along(axes, np.concatenate([line.x[np.isfinite(line.x)] for line in lines]), against)
    axes.set_xlabel(_title(against), color=INK, fontsize=10.5, labelpad=6, parse_math=False)
    axes.set_ylabel(_title(metric), color=INK, fontsize=10.5, labelpad=6, parse_math=False)
    axes.grid(axis="y", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#9A9A9A")
    axes.tick_params(axis="x", color="#9A9A9A", labelcolor=INK, length=4)
    axes.tick_params(axis="y", which="both", length=0, labelcolor=INK)


def _limit(axes: Axes, values: np.ndarray, metric: str) -> None:
    """The vertical axis with room for all finite ``values``: in percent for shares, else linear or logarithmic."""
    if metric_kinds.kind(metric) is MetricKind.SHARE:
        values = np.clip(values, 0, 1)
        low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
        bottom = 0.0 if low < 0.4 else np.floor(low * 10 - 0.5) / 10
        axes.set_ylim(max(bottom, 0.0), min(1.0, high + 0.06 * (high - bottom) + 0.005))
        label_in_percent(axes)
    elif values.size and values.min() > 0 and values.max() > _LOG_RATIO * values.min():
        axes.set_yscale("log")


def label_in_percent(axes: Axes) -> None:
    """Labels the vertical axis in percent of shares in [0, 1], with the digits that its ticks need: 0.875 is 87.5%."""
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")


def _limit_along(axes: Axes, values: np.ndarray, against: str) -> None:
    """The horizontal axis with room for all finite ``values``; logarithmic for costs that reach far."""
    first, last = (values.min(), values.max()) if values.size else (0.0, 1.0)
    if against != ROUND and first > 0 and last > _LOG_RATIO * first:
        axes.set_xscale("log")
        axes.set_xlim(first, last)
    else:
        axes.set_xlim(0 if 0 <= first <= 0.2 * last else first, last if last > first else last + 1)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=against == ROUND))
    if metric_kinds.kind(against) is MetricKind.COST and against != ROUND:
        unit = "B" if against.startswith("bytes") else "s" if against.endswith("seconds") else ""
        axes.xaxis.set_major_formatter(EngFormatter(unit))


def _label_ends(axes: Axes, lines: Sequence[Curve], labels: Sequence[str]) -> list[Text]:
    """Names the lines at their right ends, moved apart where the names would overlap."""
    ends = [_place(axes, line) for line in lines]
    texts = []
    places = spread([y for _, y in ends], _LABEL_GAP)
    places += np.clip(0.0, -0.02 - places.min(), None) + min(0.0, 1.02 - places.max())
    for index, ((x_end, end), place) in enumerate(zip(ends, places, strict=True)):
        color = _PALETTE[index % len(_PALETTE)]
        leader = {"color": color, "linewidth": 0.9, "clip_on": False, "alpha": 0.75}
        axes.plot([x_end + 0.003, 1.018], [end, place], transform=axes.transAxes, **leader)
        text = axes.text(1.024, place, labels[index], transform=axes.transAxes, color=color)
        text.set(fontsize=10, fontweight="bold", va="center", parse_math=False)
        texts.append(text)
    return texts


def _place(axes: Axes, line: Curve) -> tuple[float, float]:
    """Where a line ends in the axes, from 0 to 1; at the right edge, or at the bottom, where that is not finite."""
    end, instead = np.array([line.x[-1], line.mean[-1]]), np.array([1.0, 0.0])
    finite = np.isfinite(end)
    inside = axes.transAxes.inverted().transform(axes.transData.transform(np.where(finite, end, instead)))
    x, y = np.where(finite, np.clip(inside, 0, 1), instead)
    return float(x), float(y)


def _legend(axes: Axes, handles: Sequence[Line2D], labels: Sequence[str]) -> None:
    """Names the lines below the axes, in as many columns as fit."""
    space = {"handlelength": 2.6, "columnspacing": 1.4, "labelspacing": 0.35, "borderpad": 0}
    below = {"loc": "upper left", "bbox_to_anchor": (-0.01, -0.18), "frameon": False, "fontsize": 10, "labelcolor": INK}
    for columns in range(_COLUMNS, 0, -1):
        legend = axes.legend(handles, labels, ncols=columns, **below, **space)
        for text in legend.get_texts():
            text.set_parse_math(False)
        if legend.get_window_extent().width <= axes.bbox.width:
            break


def _head(figure: Figure, runs: Sequence[StoredRun], lines: Sequence[Curve], metric: str, title: str | None) -> None:
    """Title, and a line with what all runs share."""
    left = _FRAME[0]
    if title is None:
        names = list(dict.fromkeys(data_title(run.config) for run in runs))
        whose = f" of {method(runs[0].config)}" if len(lines) == 1 else ""
        title = f"{_title(metric)}{whose} on {', '.join(names)}"
    headline = figure.text(left, 0.945, clean(title, 80), color=INK)
    headline.set(fontsize=13.5, fontweight="bold", va="center", parse_math=False)
    below = figure.text(left, 0.893, clean(shared([run.config for run in runs]), 180), color=_MUTED)
    below.set(fontsize=9.5, va="center", parse_math=False)
    below.set_fontsize(9.5 * min(1.0, _FRAME[2] * figure.bbox.width / max(below.get_window_extent().width, 1.0)))
    counts = sorted({line.num_runs for line in lines})
    if counts[-1] > 1:
        number = str(counts[-1]) if len(counts) == 1 else f"up to {counts[-1]}"
        end = ", up to the round that all of them have reached" if any(line.is_cut for line in lines) else ""
        note = figure.text(left, 0.857, f"line: mean over {number} seeds{end}; band: minimum to maximum", color=_MUTED)
        note.set(fontsize=8.5, va="center")


def _title(metric: str) -> str:
    name = metric_kinds.title(metric)
    return clean(name[:1].upper() + name[1:], 60)


def _written(value: float, metric: str) -> str:
    if not np.isfinite(value):
        return "not finite"
    return f"{value:.1%}" if metric_kinds.kind(metric) is MetricKind.SHARE else f"{value:.4g}"
