"""Tables and charts as comma-separated values inside the page, in links that save a file."""

import csv
import html
import io
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_SAFE = " !$&'()*+,-./:;=?@_~"  # of an address that ends at a quotation mark; all others are escaped
_FORMULA = ("=", "+", "-", "@")


def link(lines: Iterable[Sequence[Any]]) -> str:
    """The address of a file of these lines, the first of them its head; what is not finite is an empty field."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([_field(value) for value in line] for line in lines)
    return address("text/csv", stream.getvalue())


def address(kind: str, text: str) -> str:
    """The address of a file of a kind, such as ``text/csv``, that holds a text."""
    return f"data:{kind};charset=utf-8," + urllib.parse.quote(text, _SAFE, errors="replace")


def of_chart(chart: dict[str, Any]) -> str:
    """The address of a file of what a chart shows: a line for each point of its lines, or for each cell of its map."""
    axes = [html.unescape(chart["layout"][axis]["title"]["text"]) for axis in ("xaxis", "yaxis")]
    first = chart["data"][0]
    if first.get("type") == "heatmap":
        names = chart["layout"].get("meta") or range(len(first["z"]))
        cells = [
            [x, names[y], value]
            for y, row in enumerate(first["z"])
            for x, value in zip(first.get("x", range(len(row))), row, strict=True)
        ]
        return link([[*axes, "value"], *cells])
    points = [
        [html.unescape(trace["name"]), x, y, *ends]
        for trace in chart["data"]
        if "name" in trace
        for x, y, ends in zip(
            trace["x"], trace["y"], trace.get("customdata") or [[None, None]] * len(trace["x"]), strict=True
        )
    ]
    return link([["line", *axes, "low", "high"], *points])


def _field(value: Any) -> Any:
    """A field that spreadsheets take for a number or a text, and never for a formula."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) and len(value) > 1 else value
    return "" if value is None or (isinstance(value, float) and not np.isfinite(value)) else value
