"""Charts as still images, for pages without plotly.js."""

import html
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedjax_drag.experiment.figures import style
from fedjax_drag.experiment.report.charts import INK, MUTED, Chart, edges

_WIDTH, _HEIGHT, _PIXELS = 6.4, 2.8, 100  # inches; pixels of an inch
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b85a8f", "#a87400", "#3a94c9", "#101010", "#6f5fb0")
_DASHES, _SYMBOLS = ("-", "--", ":", "-."), "osD^Xvp*"
_GONE, _GREY = "#c9ced6", "#5b6370"
_NAMES = {color: f"var(--s{i})" for i, color in enumerate(_COLORS)} | {_GONE: "var(--gone)", _GREY: "var(--muted)"}


def picture(chart: Chart) -> Markup:
    """A chart of the page as SVG, in the page's colours."""
    layout = chart["layout"]
    height = layout.get("height", _HEIGHT * _PIXELS) / _PIXELS
    figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor="white", dpi=_PIXELS)
    axes = figure.add_subplot()
    for trace in chart["data"]:
        if trace.get("type") == "heatmap":
            _heat_map(figure, axes, trace)
        elif trace["meta"] == INK:
            axes.step(trace["x"], trace["y"], where="post", color=style.INK, linewidth=2)
        elif "name" in trace:
            _line(axes, trace)
    for shape in layout.get("shapes", ()):
        axes.axhline(shape["y0"], color=_GREY, linestyle=":", linewidth=1.2)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        given = layout[f"{name}axis"]
        if given.get("type") == "log":
            axes.set(**{f"{name}scale": "log"})
            axis.set_minor_formatter("")
        if "range" in given:
            limits = 10 ** np.array(given["range"]) if given.get("type") == "log" else given["range"]
            axes.set(**{f"{name}lim": limits})
        if "tickformat" in given:
            axis.set_major_formatter(PercentFormatter(1.0))
        if "ticktext" in given or not given.get("showticklabels", True):
            axis.set_ticks(given.get("tickvals", []), given.get("ticktext", []))
        axis.set_label_text(html.unescape(given["title"]["text"]), color=style.INK, parse_math=False)
        axis.set_tick_params(length=0, labelcolor=style.INK)
    axes.spines[:].set_visible(False)
    return Markup(style.inline(figure, _NAMES))


def _line(axes: Axes, trace: dict[str, Any]) -> None:
    series, x, y = trace["meta"], np.array(trace["x"]), np.array(trace["y"], float)
    color = _COLORS[series % len(_COLORS)]
    every = max(1, len(x) // trace["marker"].get("maxdisplayed", len(x)))
    axes.plot(x, y, _DASHES[series % 4], color=color, marker=_SYMBOLS[series % 8], markersize=4, markevery=every)
    axes.grid(axis="y", color=style.GRID, linewidth=0.9)
    if "error_y" in trace:
        above, below = (np.array(trace["error_y"][side], float) for side in ("array", "arrayminus"))
        axes.errorbar(x, y, (below, above), fmt="none", color=color, capsize=2, elinewidth=1)
    elif "customdata" in trace:
        low, high = np.array(trace["customdata"], float).T
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)


def _heat_map(figure: Figure, axes: Axes, trace: dict[str, Any]) -> None:
    values = np.ma.masked_invalid(np.array(trace["z"], float))
    scale = [(0.0, _GONE), (1.0, _GONE)] if trace["meta"] == MUTED else trace["colorscale"]
    colors = "cividis" if scale == "Cividis" else LinearSegmentedColormap.from_list("", scale)
    rows, columns = values.shape
    x, y = edges(trace.get("x", range(columns))), edges(range(rows))
    drawn = axes.pcolormesh(x, y, values, cmap=colors, rasterized=True)
    drawn.set_clim(trace.get("zmin"), trace.get("zmax"))
    if trace.get("showscale", True):
        figure.colorbar(drawn, ax=axes).outline.set_visible(False)
