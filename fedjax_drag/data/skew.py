"""Distribution of the examples over clients and classes, as numbers, a table and a figure."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedjax_drag.files import replaced

_MAX_ROWS = 20
_MAX_COLUMNS = 12
_GAP = -1


@dataclass(frozen=True, eq=False)
class SkewReport:
    """Class counts of every client.

    ``str()`` prints a summary and a table; :meth:`plot` draws a heat map.

    Attributes:
      counts: ``[M, C]`` integers: examples of each class that each client has.
      title: data set and partition.
    """

    counts: np.ndarray
    title: str = ""

    @property
    def sizes(self) -> np.ndarray:
        """Examples per client, ``[M]``."""
        return self.counts.sum(axis=1)

    @property
    def classes_per_client(self) -> np.ndarray:
        """Number of classes of which a client has an example, ``[M]``."""
        return (self.counts > 0).sum(axis=1)

    def __str__(self) -> str:
        num_clients, num_classes = self.counts.shape
        heading = f"{num_clients:,} clients, {self.counts.sum():,} examples, {num_classes} classes"
        summary = [["", "min", "median", "max"]]
        for label, values in (("examples per client", self.sizes), ("classes per client", self.classes_per_client)):
            summary.append([label, f"{values.min()}", f"{np.median(values):g}", f"{values.max()}"])
        return "\n".join([*([self.title] if self.title else []), heading, "", *aligned(summary), "", *self._table()])

    def _table(self) -> list[str]:
        """Clients by classes; the middle of a long or wide table is left out."""
        columns = _abbreviate(self.counts.shape[1], _MAX_COLUMNS)
        sizes = self.sizes
        body = [["client", "size", *("..." if c == _GAP else f"{c}" for c in columns)]]
        for m in _abbreviate(self.counts.shape[0], _MAX_ROWS):
            if m == _GAP:
                body.append(["..."] * len(body[0]))
                continue
            cells = ("..." if c == _GAP else f"{self.counts[m, c] or '.'}" for c in columns)
            body.append([f"{m}", f"{sizes[m]}", *cells])
        return aligned(body)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws a heat map, clients by classes; darker means more examples, white means none.

        The colour scale follows the square root of the count, so that small counts are visible.

        Args:
          path: of the figure; its ending (``.png``, ``.pdf``, ``.svg``) decides the format.
        """
        from matplotlib.colors import PowerNorm  # here, because it is slow to import
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        num_clients, num_classes = self.counts.shape
        width, height = np.clip(2.6 + 0.2 * num_clients, 6.0, 14.0), np.clip(1.6 + 0.2 * num_classes, 2.8, 10.0)
        figure = Figure(figsize=(float(width), float(height)), layout="constrained")
        axes = figure.add_subplot()
        shown = np.ma.masked_equal(self.counts.T, 0)
        norm = PowerNorm(0.5, vmin=0, vmax=self.counts.max())
        image = axes.imshow(shown, cmap="YlGnBu", norm=norm, aspect="auto", interpolation="nearest", origin="lower")
        axes.set(xlabel="client", ylabel="class", title=self.title)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if num_clients <= 100:  # separate the cells
            axes.set_xticks(np.arange(num_clients + 1) - 0.5, minor=True)
            axes.set_yticks(np.arange(num_classes + 1) - 0.5, minor=True)
            axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_color("0.8")
        colorbar = figure.colorbar(image, ax=axes, label="examples", pad=0.01)
        colorbar.outline.set_visible(False)
        place = Path(path)
        with replaced(place) as stream:
            figure.savefig(stream, format=place.suffix[1:].lower(), dpi=150)


def _abbreviate(count: int, limit: int) -> list[int]:
    """``0 .. count-1``, or its first and last few with a gap between them."""
    if count <= limit:
        return list(range(count))
    last = limit // 4
    return [*range(limit - 1 - last), _GAP, *range(count - last, count)]


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns flush right, the first flush left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    cells = (
        [f"{row[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))] for row in table
    )
    return ["  ".join(row).rstrip() for row in cells]
