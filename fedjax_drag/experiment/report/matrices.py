"""The final values of a sweep as matrices: with worst cases, by two parameters, and their differences."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag import notebook
from fedjax_drag.experiment.intervals import estimate, mean_and_spread
from fedjax_drag.experiment.plain import grouped
from fedjax_drag.experiment.report import csv_files
from fedjax_drag.experiment.report.curves import best_setting
from fedjax_drag.experiment.report.reading import Found
from fedjax_drag.experiment.report.tables import DASH
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.sweep import outcome_table

WORST = "worst case"


class MatrixCell(NamedTuple):
    """A cell of a matrix.

    Attributes:
      text: its figure.
      shade: from 0 to 100, None if it has no figure.
      muted: whether the figure says little.
    """

    text: str
    shade: int | None = None
    muted: bool = False


class MatrixTable(NamedTuple):
    """A matrix of figures.

    Attributes:
      axis: what the rows are values of.
      columns: their labels, :data:`WORST` first if there are worst cases.
      rows: label and entries.
      csv: the figures as a file.
      across: what the columns are values of, where their labels do not say it.
    """

    axis: str
    columns: list[str]
    rows: list[tuple[str, list[MatrixCell]]]
    csv: str
    across: str = ""

    @property
    def worst(self) -> bool:
        """Whether there are worst cases."""
        return self.columns[0] == WORST


def matrix(found: Found) -> MatrixTable | None:
    """The final values of a sweep with more than one column, the best worst case first; None if there is none."""
    if found.grid is None:
        return None
    grid, made = found.grid, outcome_table.matrix(found.grid, found.runs)
    by, _ = outcome_table.axes_of(grid)
    if len(made.columns) < 2:
        return None
    labels = [outcome_table.setting(grid, values, by) for values in made.settings]  # as in the table of results
    columns, texts, values = [*made.columns], made.texts, made.mean
    if made.worst is not None:
        columns, values = [WORST, *columns], np.column_stack([made.worst, values])
        texts = [(made.criterion.figure(x), *line) for x, line in zip(made.worst, texts, strict=True)]
    file = csv_file(made.axis, columns, made.rows, values)
    return MatrixTable(made.axis, columns, shaded(labels, texts, made.criterion.merits(values)), file)


def parameter_map(found: Found, axes: Sequence[str]) -> list[tuple[str, MatrixTable]]:
    """The final value by two numeric axes, the worst over the conditions: a matrix for each other choice, by name.

    Args:
      found: the sweep.
      axes: of rows and of columns.
    """
    grid = found.grid
    if grid is None or len(axes) != 2:
        return []
    others = [axis for axis in outcome_table.divided(grid)[0] if axis not in axes]
    place = lambda run: (outcome_table.setting(grid, run.values, others), *(run.values[axis] for axis in axes))
    by = found.criterion
    merit = lambda group: float(by.merits(group.final(by.column)))
    by_place = grouped(found.groups, lambda group: place(group.runs[0]))
    worst = {key: min(same, key=merit).finals(by.column) for key, same in by_place.items()}
    rows, columns = (outcome_table.texts(grid.labels[axis]) for axis in axes)
    labels = [outcome_table.setting(grid, {axes[0]: value}, axes[:1]) for value in rows]
    made = []
    for name in dict.fromkeys(name for name, *_ in worst):
        finals = [[worst[name, row, column] for column in columns] for row in rows]
        values = np.array([[np.mean(same) if same else np.nan for same in line] for line in finals])
        texts = [[mean_and_spread(np.array(same), by) if same else DASH for same in line] for line in finals]
        cells = shaded(labels, texts, by.merits(values))
        file = csv_file(f"{axes[0]}, by {axes[1]}", columns, rows, values)
        made.append((name, MatrixTable(axes[0], list(columns.values()), cells, file, axes[1])))
    return made


def differences(found: Found, crossed: bool) -> tuple[str, MatrixTable] | None:
    """Final values less those of the best setting, paired by seed; None without two seeds in common.

    Args:
      found: the runs.
      crossed: whether columns are conditions, under each of which all rows are compared; else there is one best cell.

    Returns:
      The name of the best setting, and the matrix.
    """
    by = found.criterion
    finals = {
        (group.row, group.column): {
            run.config.seed: float(run.history[by.column][-1]) for run in group.drawn if run.status == "done"
        }
        for group in found.groups
    }
    rows, columns = (list(dict.fromkeys(key[side] for key in finals)) for side in (0, 1))
    chosen = best_setting(found, crossed)
    if not chosen:
        return None
    best = chosen[0].row, "" if crossed else chosen[0].column
    if crossed:
        means = {key: np.mean([*by_seed.values()] or [np.nan]) for key, by_seed in finals.items()}
        rows.sort(key=lambda row: -min(by.merits(means[row, column]) for column in columns))
    lines: list[tuple[str, list[MatrixCell]]] = []
    file: list[list[Any]] = [["what", "setting", "less", "seeds", "mean", "half_width"]]
    for row in rows:
        entries = []
        for column in columns:
            other = (best[0], column) if crossed else best
            own, theirs = finals.get((row, column), {}), finals.get(other, {})
            seeds = sorted(own.keys() & theirs.keys())
            if other == (row, column) or len(seeds) < 2:
                entries.append(MatrixCell("best" if other == (row, column) else DASH, muted=True))
                continue
            difference = estimate(np.array([own[seed] - theirs[seed] for seed in seeds]))
            mean, half = (by.figure(abs(size)) for size in (difference.mean, difference.half))
            sign = "" if not float(mean) else "+" if difference.mean > 0 else "\N{MINUS SIGN}"
            text = f"{sign}{mean} \N{PLUS-MINUS SIGN} {half}"
            entries.append(MatrixCell(text, muted=not difference.is_clear))
            file.append([row, column, _named(other), len(seeds), difference.mean, difference.half])
        lines.append((row, entries))
    if len(file) == 1:
        return None
    shown = [column or metric_kinds.title(by.column) for column in columns]
    return _named(best), MatrixTable("", shown, lines, csv_files.link(file))


def csv_file(corner: str, columns: Iterable[Any], rows: Iterable[Any], values: np.ndarray) -> str:
    """The figures of a matrix as a file."""
    return csv_files.link(
        [[corner, *columns], *([row, *line] for row, line in zip(rows, values.tolist(), strict=True))]
    )


def shaded(
    labels: Sequence[str], texts: Sequence[Sequence[str]], values: np.ndarray
) -> list[tuple[str, list[MatrixCell]]]:
    """The rows of a matrix; the better a value, the stronger its shade.

    Args:
      labels: of the rows.
      texts: of the cells.
      values: how good they are, the higher the better.
    """
    shares = 100 * notebook.shares(values)
    return [
        (label, [MatrixCell(x, round(share) if np.isfinite(share) else None) for x, share in zip(*line, strict=True)])
        for label, *line in zip(labels, texts, shares.tolist(), strict=True)
    ]


def _named(setting: tuple[str, str]) -> str:
    return ", ".join(filter(None, setting))
