"""The final accuracies of a sweep as matrices: with worst cases, by two parameters, and their differences."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.config.config import is_condition
from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.experiment.report import csv_files
from fedjax_drag.experiment.report.curves import Group, choice_of, groups
from fedjax_drag.experiment.report.reading import Found, ReportedRun, cells
from fedjax_drag.experiment.report.tables import DASH, last, over
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.sweep import outcome_table


class MatrixCell(NamedTuple):
    """A cell of a matrix.

    Attributes:
      text: its figure.
      shade: from 0 to 100, None if it has no figure.
      row: number of its line in the table of results from 1 on, 0 if it has none.
      muted: whether the figure says little.
    """

    text: str
    shade: int | None
    row: int = 0
    muted: bool = False


class MatrixTable(NamedTuple):
    """A matrix of figures.

    Attributes:
      axis: what the rows are values of.
      heads: a line for each other axis: its name, and its labels with the number of columns that each spans.
      columns: all labels of each column in one text.
      rows: label and entries; of a matrix with worst cases, they are the first entries, and the best row is the first.
      worst: whether there are worst cases.
      num_seeds: runs behind an entry.
      metric: the accuracy that the entries are.
      csv: the figures as a file.
    """

    axis: str
    heads: list[tuple[str, list[tuple[str, int]]]]
    columns: list[str]
    rows: list[tuple[str, list[MatrixCell]]]
    worst: bool
    num_seeds: int
    metric: str
    csv: str


def matrix(found: Found) -> MatrixTable | None:
    """The final accuracies of a sweep with more than one column; None if there is none."""
    if found.grid is None:
        return None
    grid, made = found.grid, outcome_table.matrix(found.grid, cells(found))
    by, across = outcome_table.axes_of(grid)
    if len(made.columns) < 2:
        return None
    rows = {label: label for label in made.rows}
    if len(by) == 1:  # the table of results has the axis in its labels
        written = outcome_table.texts(grid.labels[by[0]])
        rows = {text: outcome_table.setting(grid, {by[0]: value}, by) for value, text in written.items()}
    numbers = _numbered(found)
    values = made.mean if made.worst is None else np.column_stack([made.worst, made.mean])
    shades, number = _shades(values), len(made.columns)
    lines = []
    for place, label in enumerate(made.rows):
        entries = [
            MatrixCell(text, shade, numbers.get((rows[label], column), 0))
            for text, shade, column in zip(made.texts[place], shades[place][-number:], made.columns, strict=True)
        ]
        first = [] if made.worst is None else [MatrixCell(outcome_table.percent(made.worst[place]), shades[place][0])]
        lines.append((rows[label], first + entries))
    columns = [*([] if made.worst is None else ["worst case"]), *made.columns]
    body = ([row, *line] for row, line in zip(made.rows, values.tolist(), strict=True))
    table = csv_files.link([[made.axis, *columns], *body])
    settings = dict.fromkeys(tuple(run.values[axis] for axis in across) for run in found.runs)
    heads = _heads(across, [outcome_table.texts(grid.labels[axis]) for axis in across], list(settings))
    return MatrixTable(made.axis, heads, columns, lines, made.worst is not None, made.num_seeds, made.metric, table)


def parameter_map(found: Found, axes: Sequence[str]) -> list[tuple[str, MatrixTable]]:
    """The final accuracy by two numeric axes, the lowest over the conditions: a matrix for each other choice, by name.

    Args:
      found: the sweep.
      axes: of rows and of columns.
    """
    grid = found.grid
    if grid is None or len(axes) != 2:
        return []
    others = [axis for axis in grid.axes if axis not in ("seed", *axes) and not is_condition(axis)]
    conditions = [axis for axis in grid.axes if is_condition(axis)]
    finals: dict[str, dict[tuple[Any, Any], dict[str, list[ReportedRun]]]] = {}
    for run in found.runs:
        cell = finals.setdefault(outcome_table.setting(grid, run.values, others), {})
        at = cell.setdefault((run.values[axes[0]], run.values[axes[1]]), {})
        at.setdefault(outcome_table.setting(grid, run.values, conditions), []).append(run)
    metric, numbers = choice_of(groups(found.runs)), _numbered(found)
    rows, columns = (outcome_table.texts(grid.labels[axis]) for axis in axes)
    made = []
    for name, cell in finals.items():
        values = np.full((len(rows), len(columns)), np.nan)
        texts = np.full(values.shape, DASH, object)
        places = np.zeros(values.shape, int)
        for (row, column), by_condition in cell.items():
            place = list(rows).index(row), list(columns).index(column)
            found_groups = [group for runs in by_condition.values() for group in groups(runs)]
            means = [group.final(metric) for group in found_groups]
            lowest = found_groups[int(np.argmin(means))]
            values[place] = np.min(means)
            texts[place] = over(lowest, lambda run: 100 * last(run, metric))
            places[place] = numbers[lowest.row, lowest.column]
        shades = _shades(values)
        lines = [
            (row, [MatrixCell(*entry) for entry in zip(texts[i].tolist(), shades[i], places[i].tolist(), strict=True)])
            for i, row in enumerate(outcome_table.setting(grid, {axes[0]: value}, axes[:1]) for value in rows)
        ]
        heads = [(axes[1], [(text, 1) for text in columns.values()])]
        body = ([row, *line] for row, line in zip(rows, values.tolist(), strict=True))
        table = csv_files.link([[f"{axes[0]}, by {axes[1]}", *columns], *body])
        seeds = max(len(group.runs) for group in groups(found.runs))
        made.append((name, MatrixTable(axes[0], heads, list(columns.values()), lines, False, seeds, metric, table)))
    return made


def differences(found: Sequence[Group], crossed: bool) -> tuple[str, MatrixTable] | None:
    """Final accuracies less those of the best setting, paired by seed; None without two seeds in common.

    Args:
      found: the runs.
      crossed: whether columns are conditions, under each of which all rows are compared; else there is one best cell.

    Returns:
      The name of the best setting, and the matrix.
    """
    metric = choice_of(found)
    finals = {
        (group.row, group.column): {run.config.seed: last(run, metric) for run in group.drawn if run.status == "done"}
        for group in found
    }
    rows, columns = (list(dict.fromkeys(key[side] for key in finals)) for side in (0, 1))
    means = {key: np.mean(list(by_seed.values())) for key, by_seed in finals.items() if by_seed}
    if crossed:
        worst = {row: min(means.get((row, column), -1.0) for column in columns) for row in rows}
        rows.sort(key=lambda row: -worst[row])
        best = rows[0]
        reference = {column: (best, column) for column in columns}
        name = best
    else:
        if not means:
            return None
        key = max(means, key=lambda key: means[key])
        reference, name = dict.fromkeys(columns, key), ", ".join(filter(None, key))
    lines, table = [], [["what", "setting", "less", "seeds", "mean", "half_width"]]
    compared = 0
    for row in rows:
        entries = []
        for column in columns:
            other = reference[column]
            own, theirs = finals.get((row, column), {}), finals.get(other, {})
            seeds = sorted(own.keys() & theirs.keys())
            if other == (row, column) or len(seeds) < 2:
                entries.append(MatrixCell("best" if other == (row, column) else DASH, None, muted=True))
                continue
            compared += 1
            difference = estimate(np.array([own[seed] - theirs[seed] for seed in seeds]))
            text = f"{100 * difference.mean:+.1f} \N{PLUS-MINUS SIGN} {100 * difference.half:.1f}".replace(
                "-0.0 ", "0.0 "
            )
            entries.append(MatrixCell(text.replace("-", "\N{MINUS SIGN}"), None, muted=not difference.is_clear))
            table.append([row, column, ", ".join(filter(None, other)), len(seeds), *difference])  # pyright: ignore
        lines.append((row, entries))
    if not compared:
        return None
    shown = [column or metric_kinds.title(metric) for column in columns]
    heads = [("", [(column, 1) for column in shown])]
    seeds = max(len(by_seed) for by_seed in finals.values())
    return name, MatrixTable("", heads, shown, lines, False, seeds, metric, csv_files.link(table))


def _heads(
    axes: Sequence[str], texts: Sequence[dict[Any, str]], columns: Sequence[tuple[Any, ...]]
) -> list[tuple[str, list[tuple[str, int]]]]:
    """For each axis its name, and its labels with the number of columns that each spans."""
    heads = []
    for level, axis in enumerate(axes):
        runs = [list(same) for _, same in itertools.groupby(columns, key=lambda setting: setting[: level + 1])]
        heads.append((axis, [(texts[level][same[0][level]], len(same)) for same in runs]))
    return heads


def _numbered(found: Found) -> dict[tuple[str, str], int]:
    """The line of the table of results, from 1 on, by row and column."""
    return {(group.row, group.column): number for number, group in enumerate(groups(found.runs), start=1)}


def _shades(values: np.ndarray) -> list[list[int | None]]:
    """From 0 for the lowest value to 100 for the highest; None for what is not finite."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    # Cubed, since good rules are close together where a bad one is far away.
    shares = 100 * ((values - low) / (high - low or 1.0)) ** 3
    return [[round(share) if np.isfinite(share) else None for share in row] for row in shares.tolist()]
