"""Charts as plotly.js draws them: plain mappings with data and layout.

Colours are left to the page, which knows whether it is light or dark: a trace has the number of its series as ``meta``,
and the page paints it. Every text in a chart goes through :func:`text`, since plotly.js takes some of HTML for markup.
"""

import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.figures.labels import clean

Chart = dict[str, Any]
"""``data``, a list of traces, and ``layout``."""

MOST_BANDS = 4
"""Lines that have bands; those of more would merge, and have whiskers instead."""

MOST_POINTS = 300
"""Points of a line; more are thinned out evenly."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "8px,3px,2px,3px", "3px,2px")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross", "star")
"""Of series 0, 1, ..., so that lines differ in print and to every eye."""

MUTED, INK = -1, -2
"""Numbers of what is no series: what is there but does not count, and marks in the colour of the text."""

_FEW, _MARKS = 12, 6  # points that all have markers and whiskers, and how many have them of more
_LARGEST = 1e100  # what is larger is left out, as what is not finite is
_LOG_RATIO = 100.0


class Line(NamedTuple):
    """A line of a chart.

    Attributes:
      name: of its series.
      series: number of its colour, dash and marker.
      x: ``[E]``.
      y: ``[E]``, NaN where there is a gap.
      band: its lower and its upper edge, ``[E]`` each, or None.
    """

    name: str
    series: int
    x: np.ndarray
    y: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None


def over_seeds(name: str, x: np.ndarray, values: Iterable[Sequence[float] | np.ndarray]) -> Line:
    """The mean of the values at each ``x``, one a seed, in a band from their minimum to their maximum."""
    by_point = list(values)
    y, low, high = (np.array([reduce(point) for point in by_point]) for reduce in (np.mean, np.min, np.max))
    return Line(name, 0, x, y, (low, high) if max(map(len, by_point)) > 1 else None)


def text(written: Any, length: int = 60) -> str:
    """Text that may come from anywhere, for a chart."""
    return html.escape(clean(str(written), length), quote=False)


def vertical_axis(title: str, lines: Sequence[Line], percent: bool) -> dict[str, Any]:
    """An axis with room for all ``lines``; logarithmic if positive values reach over two decades."""
    parts = [part for line in lines for part in (line.y, *(line.band or ()))]
    values = drawable(np.concatenate([*parts, np.zeros(0)]))
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    axis: dict[str, Any] = {"tickformat": ".0%"} if percent else {}
    if percent and low >= 0.0 and high <= 1.0:
        low = 0.0 if low < 0.4 else float(np.floor(low * 10 - 0.5) / 10)
        limits = [low, min(1.0, high + 0.06 * (high - low) + 0.01) if high < 1.0 else 1.005]
    elif low > 0.0 and high > _LOG_RATIO * low:
        title = f"{title} (log scale)"
        limits = np.log10([low / 1.2, high * 1.2]).tolist()
        axis |= {"type": "log", "exponentformat": "power"}
    else:
        margin = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
        limits = [max(low - margin, 0.0) if low >= 0.0 else low - margin, high + margin]
    return axis | {"title": {"text": text(title, 80)}, "range": limits}


def curves(
    lines: Sequence[Line], yaxis: dict[str, Any], xaxis: dict[str, Any] | None = None, target: float | None = None
) -> Chart:
    """Lines with bands, or whiskers if they are many.

    Args:
      lines: at least one.
      yaxis: from :func:`vertical_axis`.
      xaxis: the horizontal axis; default communication rounds.
      target: where a dotted line is drawn, or None.
    """
    banded = [line.series for line in lines if line.band is not None]
    form = ".1%" if "tickformat" in yaxis else ".4~g"
    data = []
    for line in lines:
        kept = thinned(len(line.x))
        trace: dict[str, Any] = {
            "x": line.x[kept].tolist(),
            "y": numbers(line.y[kept]),
            "name": text(line.name),
            "meta": line.series,
            "mode": "lines+markers",
            "cliponaxis": False,  # a marker on the edge of the chart is whole
            "line": {"width": 2, "dash": DASHES[line.series % len(DASHES)]},
            "marker": {"size": 7, "symbol": SYMBOLS[line.series % len(SYMBOLS)]},
            "hovertemplate": f"%{{y:{form}}}",
        }
        if len(kept) > _FEW:
            trace["marker"]["maxdisplayed"] = _MARKS
        if line.band is not None:
            low, high = (numbers(edge[kept]) for edge in line.band)
            trace["customdata"] = [list(pair) for pair in zip(low, high, strict=True)]
            trace["hovertemplate"] += f" (%{{customdata[0]:{form}}} to %{{customdata[1]:{form}}})"
            if len(banded) > MOST_BANDS:
                trace["error_y"] = _whiskers(line, kept, banded.index(line.series) / len(banded))
            else:
                edge = {"x": trace["x"], "meta": line.series, "mode": "lines", "line": {"width": 0}}
                edge |= {"hoverinfo": "skip", "showlegend": False}
                data += [edge | {"y": low}, edge | {"y": high, "fill": "tonexty"}]
        data.append(trace)
    layout: dict[str, Any] = {"xaxis": xaxis or _rounds(lines), "yaxis": yaxis, "hovermode": "x unified"}
    if target is not None:
        layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}]
    return {"data": data, "layout": layout}


def axis_title(title: str, hover: str) -> dict[str, Any]:
    """The title of a horizontal axis, and what stands above the values at the pointer."""
    return {"title": {"text": title}, "unifiedhovertitle": {"text": f"{hover} %{{x}}"}}


def drawable(values: np.ndarray) -> np.ndarray:
    """Those of the values that a chart can show ``[N]``."""
    return values[np.abs(values) < _LARGEST]


def numbers(values: np.ndarray, digits: int = 5) -> list[Any]:
    """Values for JSON with so many digits, of any shape; None where there is no finite one."""
    if values.ndim > 1:
        return [numbers(row, digits) for row in values]
    return [float(f"{x:.{digits}g}") if abs(x) < _LARGEST else None for x in values.tolist()]


def edges(places: Sequence[float] | np.ndarray) -> np.ndarray:
    """The edges of cells with these middles, one more than they are."""
    middles = np.array(places, float)
    first, last = np.diff(middles)[[0, -1]] / 2 if len(middles) > 1 else (0.5, 0.5)
    return np.array([middles[0] - first, *(middles[1:] + middles[:-1]) / 2, middles[-1] + last])


def thinned(number: int, most: int = MOST_POINTS) -> np.ndarray:
    """Which of so many points are drawn, the first and the last among them."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int))


def _rounds(lines: Sequence[Line]) -> dict[str, Any]:
    ends = [end for line in lines if line.x.size for end in (float(line.x[0]), float(line.x[-1]))]
    first, last = min(ends, default=0.0), max(ends, default=1.0)
    first = 0.0 if first <= 0.2 * last else first
    margin = 0.02 * (last - first) or 0.5
    return axis_title("communication round", "round") | {"range": [first - margin * (first > 0.0), last + margin]}


def _whiskers(line: Line, kept: np.ndarray, shift: float) -> dict[str, Any]:
    """From the minimum to the maximum at some of the points, from the place ``shift`` in [0, 1) on."""
    assert line.band is not None
    drawn = np.ones(len(kept), bool)
    if len(kept) > _FEW:
        drawn = np.isin(np.arange(len(kept)), ((np.arange(_MARKS) + shift) * len(kept) / _MARKS).astype(int))
    below, above = (numbers(np.where(drawn, np.abs(edge - line.y)[kept], np.nan)) for edge in line.band)
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5, "width": 3}
