"""Charts as plotly.js draws them: plain mappings with data and layout.

Colours are left to the page, which knows whether it is light or dark: a trace has the number of its series, and the
page paints it. Every text in a chart goes through :func:`text`, since plotly.js takes some of HTML for markup.
"""

import html
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.figures.labels import clean

MOST_BANDS = 4
"""Lines that have bands; those of more would merge, and have whiskers instead."""

MOST_POINTS = 300
"""Points of a line; more are thinned out evenly."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "8px,3px,2px,3px", "3px,2px")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross", "star")
"""Of series 0, 1, ..., so that lines differ in print and to every eye."""

MUTED, INK = -1, -2
"""Numbers of what is no series: what is there but does not count, and marks in the colour of the text."""

_WHISKERS = 6  # of a line over many rounds
_LARGEST = 1e100  # what is larger is left out, as what is not finite is
_LOG_RATIO = 100.0


class Line(NamedTuple):
    """A line of a chart.

    Attributes:
      name: of its series.
      series: number of its colour, dash and marker.
      x: ``[E]``.
      y: ``[E]``, NaN where there is a gap.
      low: lower edge of the band ``[E]``, or None.
      high: upper edge.
    """

    name: str
    series: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


class Scale(NamedTuple):
    """The vertical axis that charts of one quantity share.

    Attributes:
      title: of the axis, with its unit.
      percent: whether values are shares in [0, 1].
      log: whether it is logarithmic.
      low: its lower end.
      high: its upper end.
    """

    title: str
    percent: bool
    log: bool
    low: float
    high: float


def text(written: Any, length: int = 60) -> str:
    """Text that may come from anywhere, for a chart."""
    return html.escape(clean(str(written), length), quote=False)


def scale(title: str, lines: Sequence[Line], percent: bool) -> Scale:
    """An axis with room for all ``lines``; logarithmic if positive values reach over two decades."""
    parts = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    values = drawable(np.concatenate(parts)) if parts else np.zeros(0)
    if not values.size:
        return Scale(title, percent, False, 0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if percent and low >= 0.0 and high <= 1.0:
        low = 0.0 if low < 0.4 else float(np.floor(low * 10 - 0.5) / 10)
        return Scale(title, True, False, low, min(1.0, high + 0.06 * (high - low) + 0.01) if high < 1.0 else 1.005)
    if low > 0.0 and high > _LOG_RATIO * low:
        return Scale(f"{title} (log scale)", percent, True, low / 1.2, high * 1.2)
    margin = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
    low = max(low - margin, 0.0) if low >= 0.0 else low - margin
    return Scale(title, percent, False, low, high + margin)


def curves(lines: Sequence[Line], axis: Scale, target: float | None = None) -> dict[str, Any]:
    """Lines with bands, or whiskers if they are many, over communication rounds, and a dotted line at ``target``."""
    data, series = [], []
    banded = [id(line) for line in lines if line.low is not None]
    last = max((float(line.x[-1]) for line in lines if line.x.size), default=1.0)
    for line in lines:
        kept = thinned(len(line.x))
        x = line.x[kept].tolist()
        if line.low is not None and line.high is not None and len(banded) <= MOST_BANDS:
            edge = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            data += [edge | {"y": numbers(line.low[kept])}, edge | {"y": numbers(line.high[kept]), "fill": "tonexty"}]
            series += [line.series] * 2
        data.append(_line(line, x, kept, axis))
        series.append(line.series)
        if line.low is not None and len(banded) > MOST_BANDS:
            data[-1]["error_y"] = whiskers(line, kept, banded.index(id(line)) / len(banded))
    first = min((float(line.x[0]) for line in lines if line.x.size), default=0.0)
    margin = 0.02 * (last if first <= 0.2 * last else last - first)
    layout: dict[str, Any] = {
        "xaxis": {
            "unifiedhovertitle": {"text": "round %{x}"},
            "title": {"text": "communication round"},
            "range": [0.0 if first <= 0.2 * last else first - margin, last + margin],
        },
        "yaxis": {"title": {"text": text(axis.title, 80)}, "range": [axis.low, axis.high]},
        "hovermode": "x unified",
    }
    if axis.percent:
        layout["yaxis"] |= {"tickformat": ".0%"}
    if axis.log:
        layout["yaxis"] |= {"type": "log", "range": np.log10([axis.low, axis.high]).tolist(), "exponentformat": "power"}
    if target is not None:
        layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}]
    return {"data": data, "layout": layout, "series": series}


def whiskers(line: Line, kept: np.ndarray, shift: float = 0.0, most: int = _WHISKERS) -> dict[str, Any]:
    """From the minimum to the maximum at so many of the points, from the place ``shift`` in [0, 1) on."""
    assert line.low is not None
    assert line.high is not None
    number = len(kept)
    chosen = np.unique(((np.arange(most) + shift) * number / most).astype(int)) if number > most else np.arange(number)
    ends = [np.full(number, np.nan), np.full(number, np.nan)]
    ends[0][chosen] = (line.high - line.y)[kept][chosen]
    ends[1][chosen] = (line.y - line.low)[kept][chosen]
    above, below = map(numbers, ends)
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5, "width": 3}


def drawable(values: np.ndarray) -> np.ndarray:
    """Those of the values that a chart can show ``[N]``."""
    return values[np.abs(values) < _LARGEST]


def numbers(values: np.ndarray, digits: int = 5) -> list[Any]:
    """Values for JSON with so many digits, of any shape; None where there is no finite one."""
    if values.ndim > 1:
        return [numbers(row, digits) for row in values]
    return [float(f"{x:.{digits}g}") if abs(x) < _LARGEST else None for x in values.tolist()]


def thinned(number: int, most: int = MOST_POINTS) -> np.ndarray:
    """Which of so many points are drawn, the first and the last among them."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int))


def _line(line: Line, x: list[float], kept: np.ndarray, axis: Scale) -> dict[str, Any]:
    form = ".1%" if axis.percent else ".4~g"
    trace: dict[str, Any] = {
        "x": x,
        "y": numbers(line.y[kept]),
        "name": text(line.name),
        "mode": "lines+markers",
        "cliponaxis": False,  # a marker on the edge of the chart is whole
        "line": {"width": 2, "dash": DASHES[line.series % len(DASHES)]},
        "marker": {"size": 7, "symbol": SYMBOLS[line.series % len(SYMBOLS)], "maxdisplayed": 6},
        "hovertemplate": f"%{{y:{form}}}",
    }
    if line.low is not None and line.high is not None:
        trace["customdata"] = [
            list(pair) for pair in zip(numbers(line.low[kept]), numbers(line.high[kept]), strict=True)
        ]
        trace["hovertemplate"] += f" (%{{customdata[0]:{form}}} to %{{customdata[1]:{form}}})"
    return trace
