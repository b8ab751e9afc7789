"""What figures share: colours, names that are kept apart, and SVG text that is the same for the same figure."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from fedjax_drag.files import replaced

INK, GRID = "#222222", "#e4e4e4"
"""Colours that :func:`inline` gives to the page: that of its text, and that of its rules."""

_UNSIGNED = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def as_svg(figure: Figure) -> str:
    """The image as the text of a file."""
    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "fedjax_drag", "svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", bbox_inches="tight", pad_inches=0.15, metadata=_UNSIGNED)
    return re.sub(r"[ \t]+$", "", stream.getvalue(), flags=re.MULTILINE)


def save(figure: Figure, path: Path) -> None:
    """Writes the image with room for its labels; the end of the file's name is its format."""
    with replaced(path) as stream:
        figure.savefig(stream, format=path.suffix[1:].lower(), dpi=160, bbox_inches="tight", pad_inches=0.15)


def inline(figure: Figure, colors: Mapping[str, str] | None = None) -> str:
    """The image as an element of a page whose variables replace some colours, on its own background.

    Args:
      figure: drawn in :data:`INK` and :data:`GRID` on white.
      colors: more colours, in lower case, and what stands for them in the page.
    """
    drawn = as_svg(figure)
    drawn = drawn[drawn.index("<svg") :]
    own = {INK: "currentColor", "#000000": "currentColor", "#ffffff": "none", GRID: "var(--rule)"}
    for color, name in (own | dict(colors or {})).items():
        drawn = drawn.replace(color, name)
    return drawn


def spread(places: Sequence[float], gap: float) -> np.ndarray:
    """The positions nearest to ``places`` (least squares), in their order, at least ``gap`` apart."""
    # Equal ones keep the order in which they are listed, from the top down.
    order = np.lexsort((-np.arange(len(places)), np.asarray(places)))
    steps = gap * np.arange(len(places))
    found, wanted = np.empty(len(places)), np.asarray(places)[order] - steps
    if np.any(np.diff(wanted) < 0):
        from scipy.optimize import isotonic_regression  # here, because it is slow to import

        wanted = isotonic_regression(wanted).x
    found[order] = wanted + steps
    return found
