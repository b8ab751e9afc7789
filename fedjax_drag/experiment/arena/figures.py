"""A standing as images: defences by attacks, and accuracy against what a defence must know."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_drag.experiment.arena.scores import measured
from fedjax_drag.experiment.arena.standing import Standing
from fedjax_drag.experiment.config.config import slug
from fedjax_drag.experiment.figures.style import GRID, INK, as_svg, spread
from fedjax_drag.experiment.intervals import mean_and_spread
from fedjax_drag.experiment.sweep import heatmap
from fedjax_drag.experiment.sweep.outcome_table import Matrix
from fedjax_drag.files import write_text

_GREY, _OWN, _POINT = "#8A8A8A", "#D55E00", "#0072B2"
_REFERENCE = "root_only"
_COLUMN, _HEIGHT = 2.3, 4.6  # inches
_GAP = 0.034  # between the names of entries, of a chart from 0 to 1


def write(standing: Standing, folder: Path) -> list[Path]:
    """Writes the map of all tasks, that of each task, and accuracy against knowledge, as SVG.

    Returns:
      The paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"heat_map": heat_map(standing), "knowledge": knowledge(standing)}
    if len(standing.tasks) > 1:
        drawn |= {f"heat_map-{slug(name)}": heat_map(standing, place) for place, name in enumerate(standing.tasks)}
    for name, figure in drawn.items():
        write_text(folder / f"{name}.svg", as_svg(figure))
    return [folder / f"{name}.svg" for name in drawn]


def heat_map(standing: Standing, place: int | None = None) -> Figure:
    """Test accuracies by entry and attack, the best worst case first.

    Args:
      standing: with at least one row.
      place: of a task; None for the mean over all of them.
    """
    labels, values = standing.by_attack(place)
    of_tasks = slice(None) if place is None else [place]
    by = standing.criterion
    by_seed = [standing.rows[label].figures[of_tasks].mean(axis=0) for label in labels]
    matrix = Matrix(
        criterion=by,
        axis="entry",
        rows=tuple(labels),
        columns=tuple(standing.opponents),
        num_seeds=len(standing.seeds),
        mean=values[:, :-1],
        texts=tuple(tuple(mean_and_spread(x, by) for x in one) for one in by_seed),
        worst=values[:, -1],
        worst_on_test=values[:, -1],
    )
    name = f"mean over {len(standing.tasks)} tasks" if place is None else standing.tasks[place]
    return heatmap.draw(matrix, f"{standing.name}: {name}")


def knowledge(standing: Standing) -> Figure:
    """Worst cases with their intervals, a column for each kind of knowledge, those that need nothing first."""
    by, scores = standing.criterion, standing.scores()
    scores = {label: one for label, one in scores.items() if np.isfinite(one.worst.mean)}
    kinds = sorted({row.knowledge for row in standing.rows.values()}, key=lambda kind: (kind != "nothing", len(kind)))
    figure = Figure(figsize=(_COLUMN * len(kinds) + 0.8, _HEIGHT), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    worst = {label: [by.scale * x for x in one.worst] for label, one in scores.items()}
    height = 100.0 if by.is_share else float(np.ptp([mean for mean, _ in worst.values()] or [0.0])) or 1.0
    for column, kind in enumerate(kinds):
        members = {label: one for label, one in worst.items() if standing.rows[label].knowledge == kind}
        _column(axes, column, members, _GAP * height, standing.own)
    if _REFERENCE in worst:
        axes.axhline(worst[_REFERENCE][0], color=_GREY, linewidth=0.9, linestyle=":")
    axes.set(xlim=(-0.4, len(kinds) - 0.15), ylabel=f"worst-case test {measured(by)}")
    if by.is_share:
        axes.set(ylim=(-3, 103))
    axes.set_xticks(range(len(kinds)), [kind.replace(", ", ",\n") for kind in kinds])
    axes.set_xlabel("what the defence must know")
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(axis="y", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _column(axes: Axes, column: int, members: dict[str, list[float]], gap: float, own: list[str]) -> None:
    """The means and half widths of the entries of one kind, their names beside them, apart from each other."""
    heights = spread([mean for mean, _ in members.values()], gap)
    for (label, (mean, half)), height in zip(members.items(), heights, strict=True):
        color, weight = (_OWN, "bold") if label in own else (_POINT, "normal")
        half = np.nan_to_num(half)
        axes.errorbar(column - 0.25, mean, half, fmt="o", color=color, markersize=5, elinewidth=1, alpha=0.85)
        axes.plot([column - 0.22, column - 0.15], [mean, height], color=_GREY, linewidth=0.6)
        text = axes.text(column - 0.14, height, label, va="center", fontsize=8.5, fontweight=weight)
        text.set(color=color if label in own else INK, parse_math=False)
