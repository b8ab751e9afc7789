"""A standing as images: defences by attacks, and accuracy against what a defence must know."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_drag.experiment.arena import tables
from fedjax_drag.experiment.arena.record import PlayedRows
from fedjax_drag.experiment.arena.scores import Score, worst_by_seed
from fedjax_drag.experiment.config.config import slug
from fedjax_drag.experiment.sweep import heatmap
from fedjax_drag.experiment.sweep.outcome_table import Matrix, percent
from fedjax_drag.files import write_text
from fedjax_drag.simulation.result import TEST

_INK, _GREY, _OWN, _POINT = "#222222", "#8A8A8A", "#D55E00", "#0072B2"
_REFERENCE = "root_only"
_COLUMN, _HEIGHT = 2.3, 4.6  # inches
_UNSIGNED = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_GAP = 3.4  # between the names of entries, in percentage points of a chart from 0 to 100


def write(standing: PlayedRows, folder: Path) -> list[Path]:
    """Writes the map of all tasks, that of each task, and accuracy against knowledge, as SVG.

    Returns:
      The paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"heat_map": heat_map(standing), "knowledge": knowledge(standing)}
    if len(standing.tasks) > 1:
        drawn |= {f"heat_map-{slug(name)}": heat_map(standing, place) for place, name in enumerate(standing.tasks)}
    paths = [folder / f"{name}.svg" for name in drawn]
    for path, figure in zip(paths, drawn.values(), strict=True):
        write_text(path, as_svg(figure))
    return paths


def heat_map(standing: PlayedRows, place: int | None = None) -> Figure:
    """Test accuracies by entry and attack, the best worst case first.

    Args:
      standing: with at least one row.
      place: of a task; None for the mean over all of them.
    """
    (_, *lines), values = tables.heat(standing, place)
    labels = tuple(line[0] for line in lines)
    of_tasks = slice(None) if place is None else slice(place, place + 1)
    accuracies = [np.asarray(standing.rows[label].accuracy)[of_tasks] for label in labels]
    texts = tuple(tuple(_spread(by_seed) for by_seed in one.mean(axis=0)) for one in accuracies)
    worst = np.array([worst_by_seed(one).mean() for one in accuracies])
    matrix = Matrix(
        TEST,
        "entry",
        labels,
        tuple(standing.opponents),
        len(standing.seeds),
        values[:, :-1],
        np.zeros((len(labels), len(standing.opponents)), bool),
        texts,
        worst,
        worst,
    )
    name = f"mean over {len(standing.tasks)} tasks" if place is None else standing.tasks[place]
    return heatmap.draw(matrix, f"{standing.name}: {name}")


def knowledge(standing: PlayedRows) -> Figure:
    """Worst cases with their intervals, a column for each kind of knowledge, those that need nothing first."""
    scores = standing.scores()
    kinds = sorted({row.knowledge for row in standing.rows.values()}, key=lambda kind: (kind != "nothing", len(kind)))
    figure = Figure(figsize=(_COLUMN * len(kinds) + 0.8, _HEIGHT), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for column, kind in enumerate(kinds):
        members = {label: one for label, one in scores.items() if standing.rows[label].knowledge == kind}
        _column(axes, column, members, [label for label in members if standing.rows[label].is_own])
    if _REFERENCE in scores:
        axes.axhline(100 * scores[_REFERENCE].worst.mean, color=_GREY, linewidth=0.9, linestyle=":")
    axes.set(xlim=(-0.4, len(kinds) - 0.15), ylim=(-3, 103), ylabel="worst-case test accuracy in %")
    axes.set_xticks(range(len(kinds)), [kind.replace(", ", ",\n") for kind in kinds])
    axes.set_xlabel("what the defence must know")
    axes.tick_params(length=0, labelcolor=_INK)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def as_svg(figure: Figure) -> str:
    """The image as text, the same for the same figure."""
    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "arena", "svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", bbox_inches="tight", pad_inches=0.15, metadata=_UNSIGNED)
    return re.sub(r"[ \t]+$", "", stream.getvalue(), flags=re.MULTILINE)


def _column(axes: Axes, column: int, members: dict[str, Score], own: Sequence[str]) -> None:
    """The entries of one kind, their names beside them, apart from each other."""
    order = sorted(members, key=lambda label: members[label].worst.mean)
    heights = _apart([100 * members[label].worst.mean for label in order])
    for label, height in zip(order, heights, strict=True):
        worst = members[label].worst
        color = _OWN if label in own else _POINT
        half = 0.0 if np.isnan(worst.half) else 100 * worst.half
        axes.errorbar(
            column - 0.25, 100 * worst.mean, half, fmt="o", color=color, markersize=5, elinewidth=1, alpha=0.85
        )
        axes.plot([column - 0.22, column - 0.15], [100 * worst.mean, height], color=_GREY, linewidth=0.6)
        text = axes.text(column - 0.14, height, label, va="center", fontsize=8.5, color=color if label in own else _INK)
        text.set(fontweight="bold" if label in own else "normal", parse_math=False)


def _apart(heights: Sequence[float]) -> list[float]:
    """Ascending heights, moved up and down as little as keeps them so far apart that names can be read."""
    groups: list[list[float]] = []
    for height in heights:
        group = [height]
        while groups and _lowest(group) - _lowest(groups[-1]) < _GAP * len(groups[-1]):
            group = groups.pop() + group
        groups.append(group)
    return [_lowest(group) + _GAP * place for group in groups for place in range(len(group))]


def _lowest(group: Sequence[float]) -> float:
    """Where the first name of a group goes: the middle of the names is that of the heights."""
    return float(np.mean(group)) - _GAP * (len(group) - 1) / 2


def _spread(by_seed: np.ndarray) -> str:
    """Mean and, over several seeds, standard deviation."""
    spread = f" \N{PLUS-MINUS SIGN} {100 * by_seed.std(ddof=1):.1f}" if len(by_seed) > 1 else ""
    return percent(float(by_seed.mean())) + spread
