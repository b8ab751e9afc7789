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
    return "data:text/csv;charset=utf-8," + urllib.parse.quote(stream.getvalue(), _SAFE, errors="replace")


def of_chart(chart: dict[str, Any]) -> list[list[Any]]:
    """What a chart shows: a line for each point of its lines, or for each cell of its map."""
    axes = [_title(chart, axis) for axis in ("xaxis", "yaxis")]
    first = chart["data"][0]
    if first.get("type") == "heatmap":
        ticks = chart["layout"]["yaxis"]
        names = dict(zip(ticks.get("tickvals", ()), ticks.get("ticktext", ()), strict=True))
        rows, columns = first.get("y", range(len(first["z"]))), first.get("x", range(len(first["z"][0])))
        cells = [
            [x, names.get(y, y), first["z"][row][column]]
            for row, y in enumerate(rows)
            for column, x in enumerate(columns)
        ]
        return [[*axes, "value"], *cells]
    lines = []
    for trace in chart["data"]:
        if "name" in trace:
            band = trace.get("customdata") or [[None, None]] * len(trace["x"])
            name = html.unescape(trace["name"])
            lines += [[name, x, y, *ends] for x, y, ends in zip(trace["x"], trace["y"], band, strict=True)]
    return [["line", *axes, "low", "high"], *lines]


def _title(chart: dict[str, Any], axis: str) -> str:
    return html.unescape(chart["layout"][axis]["title"]["text"])


def _field(value: Any) -> Any:
    """A field that spreadsheets take for a number or a text, and never for a formula."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) and len(value) > 1 else value
    return "" if value is None or (isinstance(value, float) and not np.isfinite(value)) else value
