"""Pieces of HTML that notebooks show: tables, curves and heat maps.

They take the notebook's own colour of text, so that they can be read on light and on dark pages. All text is escaped.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

_COLOUR = "#4c8bf5"  # has enough contrast on white and on black
_LEVELS = 8  # shades of a heat map
_CELL = 9  # pixels


def beside(*pieces: str) -> str:
    """Pieces next to each other, or below each other where the page is narrow."""
    inner = "".join(f"<div>{piece}</div>" for piece in pieces if piece)
    return f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{inner}</div>'


def table(title: str, rows: Mapping[str, Any]) -> str:
    """A table of names and values under a title."""
    style = 'style="text-align:left;padding:1px 8px"'
    body = "".join(
        f"<tr><th {style}>{escape(name)}</th><td {style}>{escape(str(value))}</td></tr>" for name, value in rows.items()
    )
    return f'<table style="color:inherit">{_caption(title)}<tbody>{body}</tbody></table>'


def grid(
    title: str, lines: Sequence[Sequence[str]], marked: Collection[str] = (), shares: np.ndarray | None = None
) -> str:
    """A table with a head.

    Args:
      title: above it.
      lines: of cells, the first of them the head; the first cell of a line is its name.
      marked: names of lines that are set off.
      shares: of the cells from the last column backwards, values in [0, 1] that shade them ``[rows, columns]``; NaN for
        none.
    """
    plain = len(lines[0]) - (0 if shares is None else shares.shape[1])

    def cell(row: int, column: int) -> str:
        style = f"text-align:{'right' if column else 'left'};padding:1px 8px"
        if row and lines[row][0] in marked:
            style += f";font-weight:bold;border-top:2px solid {_COLOUR};border-bottom:2px solid {_COLOUR}"
        if shares is not None and row and column >= plain and np.isfinite(share := shares[row - 1, column - plain]):
            style += f";background:rgba(76,139,245,{0.7 * share:.2f})"
        tag = "td" if row and column else "th"
        return f'<{tag} style="{style}">{escape(lines[row][column])}</{tag}>'

    rows = ("".join(cell(row, column) for column in range(len(line))) for row, line in enumerate(lines))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table style="color:inherit;border-collapse:collapse">{_caption(title)}<tbody>{body}</tbody></table>'


def shares(merits: np.ndarray) -> np.ndarray:
    """How strongly cells are shaded by how good they are, the best 1: cubed, since good ones are close together."""
    known = merits[np.isfinite(merits)] if np.isfinite(merits).any() else np.zeros(1)
    return ((merits - known.min()) / (np.ptp(known) or 1.0)) ** 3


def curve(title: str, x: np.ndarray, y: np.ndarray, form: str = ".0%") -> str:
    """A curve over rounds; its vertical axis spans whole tenths.

    Args:
      title: of the vertical axis.
      x: rounds ``[E]``, increasing.
      y: values ``[E]``; those that are not finite are left out.
      form: how the ends of the vertical axis are written; default as shares.
    """
    finite = np.isfinite(y)
    x, y = np.asarray(x, float)[finite], np.asarray(y, float)[finite]
    if not x.size:
        return ""
    low, high = np.floor(10 * y.min()) / 10, np.ceil(10 * y.max()) / 10
    high = max(high, low + 0.1)
    width, height = 320, 160  # pixels
    left, right, top, bottom = 44, width - 12, 22, height - 24
    across = left + (right - left) * (x - x[0]) / max(x[-1] - x[0], 1)
    down = bottom - (bottom - top) * (y - low) / (high - low)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
    labels = [
        _text(left - 6, top + 4, f"{high:{form}}", "end"),
        _text(left - 6, bottom + 4, f"{low:{form}}", "end"),
        _text(left, height - 8, f"{x[0]:g}", "middle"),
        _text(right, height - 8, f"round {x[-1]:g}", "end") if x.size > 1 else "",
        _text(left, 12, title, "start"),
    ]
    axes = f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    line = f'<polyline points="{points}" fill="none" stroke="{_COLOUR}" stroke-width="2"/>'
    end = f'<circle cx="{across[-1]:.1f}" cy="{down[-1]:.1f}" r="3" fill="{_COLOUR}"/>'
    return _svg(title, width, height, [axes, line, end, *labels])


def heat_map(title: str, values: np.ndarray, across: str, down: str) -> str:
    """A map of shades that follow the square root, so that small values are visible.

    Args:
      title: of the map.
      values: ``[rows, columns]``, >= 0.
      across: what the columns are.
      down: what the rows are.
    """
    rows, columns = values.shape
    level = np.ceil(_LEVELS * np.sqrt(values / max(values.max(), 1))).astype(int)
    left, top = 18, 20
    shades = []
    for shade in range(1, _LEVELS + 1):
        cells = "".join(
            f"M{left + _CELL * column} {top + _CELL * row}h{_CELL - 1}v{_CELL - 1}h-{_CELL - 1}z"
            for row, column in np.argwhere(level == shade)
        )
        shades.append(f'<path d="{cells}" fill="{_COLOUR}" fill-opacity="{shade / _LEVELS:g}"/>' if cells else "")
    width, height = max(left + _CELL * columns + 4, 220), top + _CELL * rows + 20
    frame = (
        f'<path d="M{left - 1} {top - 1}h{_CELL * columns + 1}v{_CELL * rows + 1}h-{_CELL * columns + 1}z" fill="none" '
        'stroke="currentColor" stroke-opacity="0.4"/>'
    )
    upright = f'transform="rotate(-90 12 {top + _CELL * rows / 2:g})"'
    labels = [
        _text(left, 12, title, "start"),
        _text(left, height - 6, across, "start"),
        _text(12, top + _CELL * rows / 2, down, "middle", upright),
    ]
    return _svg(title, width, height, [*shades, frame, *labels])


def _caption(title: str) -> str:
    return f'<caption style="text-align:left;color:inherit"><b>{escape(title)}</b></caption>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" {more}'.rstrip()
    return f'<text {place} font-size="11" fill="currentColor">{escape(text)}</text>'


def _svg(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img"'
    return f"{head}><title>{escape(title)}</title>{''.join(parts)}</svg>"
