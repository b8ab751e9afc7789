"""A sweep's matrix of final values as an image."""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedjax_drag.experiment.figures.labels import COMMA, clean
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.sweep.outcome_table import Matrix

_WIDTH, _HEIGHT = 0.95, 0.44  # of a cell, in inches
_GAP = 0.35  # between the columns and the worst case, in cells
_INK, _MUTED, _EMPTY = "#222222", "#6B6B6B", "#F1F1F1"


def draw(matrix: Matrix, title: str) -> Figure:
    """Draws a matrix: a column for the worst case, if there is one, set apart.

    Args:
      matrix: from :func:`~fedjax_drag.experiment.sweep.outcome_table.matrix`.
      title: above it.

    Returns:
      The figure.
    """
    num_rows, num_columns = matrix.mean.shape
    places: list[float] = [*range(num_columns)]
    values, texts = matrix.mean, [*matrix.texts]
    if matrix.worst is not None:
        places.append(num_columns + _GAP)
        values = np.column_stack([values, matrix.worst])
        texts = [(*row, matrix.criterion.figure(worst)) for row, worst in zip(texts, matrix.worst, strict=True)]
    width, height = places[-1] + 1, num_rows
    figure = Figure(figsize=(_WIDTH * width, _HEIGHT * height), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    values = matrix.criterion.merits(values)
    known = values[:, :num_columns][np.isfinite(matrix.mean)]
    scale = Normalize(known.min(), known.max()) if known.size else Normalize(0.0, 1.0)
    for (row, column), value in np.ndenumerate(values):
        _cell(axes, places[column], row, value, texts[row][column], scale)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(num_rows - 0.5, -0.5))
    # A line for each axis, or neighbours that differ in the last one would look alike.
    labels = ["\n".join(clean(part, 40) for part in COMMA.split(label)) for label in (*matrix.columns, "worst case")]
    axes.set_xticks(places, labels[: len(places)])
    axes.set_yticks(range(num_rows), [clean(label, 40) for label in matrix.rows])
    axes.set_ylabel(clean(matrix.axis, 40), color=_MUTED, fontsize=9.5, parse_math=False)
    axes.tick_params(length=0, labelcolor=_INK, labelsize=9.5)
    for text in axes.get_xticklabels():
        text.set(rotation=50, ha="right", rotation_mode="anchor", parse_math=False)
    for text in axes.get_yticklabels():
        text.set(parse_math=False)
    if matrix.worst is not None:
        axes.get_xticklabels()[-1].set_fontweight("bold")
    axes.spines[:].set_visible(False)
    _head(axes, matrix, title)
    return figure


def _cell(axes: Axes, x: float, y: float, merit: float, written: str, scale: Normalize) -> None:
    color = colormaps["viridis"](scale(merit)) if np.isfinite(merit) else _EMPTY
    axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=color, linewidth=0.0))
    dark = np.isfinite(merit) and scale(merit) < 0.6
    text = axes.text(x, y, written.replace(" \N{PLUS-MINUS SIGN} ", "\N{PLUS-MINUS SIGN}"), ha="center", va="center")
    text.set(fontsize=9 if len(written) < 9 else 7.5, color="white" if dark else _INK, parse_math=False)


def _head(axes: Axes, matrix: Matrix, title: str) -> None:
    by, unit = matrix.criterion, " in %" * matrix.criterion.is_share
    heads = (
        (clean(title, 60), 24.0, {"fontsize": 13, "fontweight": "bold", "color": _INK}),
        (f"final {metric_kinds.title(by.column)}{unit}{matrix.over_seeds}", 9.0, {"fontsize": 9.5, "color": _MUTED}),
    )
    for text, height, style in heads:
        above = axes.annotate(text, (0.0, 1.0), (0.0, height), "axes fraction", "offset points", annotation_clip=False)
        above.set(parse_math=False, **style)
