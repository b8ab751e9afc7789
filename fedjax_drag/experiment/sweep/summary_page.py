"""A sweep's matrix of final values as a page of Markdown."""

from collections.abc import Sequence

import numpy as np

from fedjax_drag.experiment.plain import first, grouped
from fedjax_drag.experiment.run.metric_kinds import title
from fedjax_drag.experiment.sweep import choice
from fedjax_drag.experiment.sweep.grid import Grid, describe
from fedjax_drag.experiment.sweep.outcome_table import Cell, Matrix, matrix
from fedjax_drag.simulation.criterion import TEST


def summary(grid: Grid, cells: Sequence[Cell]) -> str:
    """The matrix with the setting that is best, and the failures below it."""
    shown, best = matrix(grid, cells), choice.best(grid, cells)
    by = shown.criterion
    what, extreme = title(by.column).capitalize(), "minimum" if by.higher_is_better else "maximum"
    worst = "" if shown.worst is None else f"; worst case: the {extreme} over the columns"
    page = [
        f"# {grid.base.name}",
        f"{what}{' in %' * by.is_share} at the end of the run{shown.over_seeds}{worst}.",
        markdown(_lines(shown)),
        *([] if best is None else [f"Best setting: {best}."]),
    ]
    if any(cell.status == "diverged" for cell in cells):
        page.append(f"\\* diverged: the {by.label} of a model whose loss is not finite")
    if wrong := grouped([cell for cell in cells if cell.message], lambda cell: f"{cell.status}: {cell.message}"):
        labels = {reason: first([describe(cell.values) for cell in same], 4) for reason, same in wrong.items()}
        page.append("\n".join(f"- {reason} ({'; '.join(same)})" for reason, same in labels.items()))
    ended = sum(cell.status != "interrupted" for cell in cells)
    if ended < len(grid.points):
        page.append(f"{ended} of {len(grid.points)} cells have run so far.")
    return "\n\n".join(page) + "\n"


def _lines(shown: Matrix) -> list[list[str]]:
    """Head and rows; the worst case on the test examples too where it is chosen by other examples."""
    worst: list[tuple[str, np.ndarray]] = [] if shown.worst is None else [("worst case", shown.worst)]
    if shown.criterion.on != TEST and shown.worst_on_test is not None:
        worst.append(("worst case on test", shown.worst_on_test))
    head = [shown.axis, *shown.columns, *(name for name, _ in worst)]
    rows = zip(shown.rows, shown.texts, *(values for _, values in worst), strict=True)
    return [head, *([row, *texts, *map(shown.criterion.figure, figures)] for row, texts, *figures in rows)]


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as an aligned table, the first of them its head."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(3, *(len(line[column]) for line in escaped)) for column in range(len(escaped[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    first, *rest = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in escaped)
    return "\n".join(f"| {' | '.join(line)} |" for line in (first, rule, *rest))
