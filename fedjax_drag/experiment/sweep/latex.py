"""A sweep's final figures as a LaTeX table in the style of booktabs."""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from fedjax_drag import checks
from fedjax_drag.experiment.config.config import is_condition
from fedjax_drag.experiment.intervals import LEVEL, Estimate, estimate
from fedjax_drag.experiment.plain import grouped
from fedjax_drag.experiment.run.metric_kinds import MetricKind, higher_is_better, kind, title
from fedjax_drag.experiment.sweep.grid import describe
from fedjax_drag.experiment.sweep.outcome_table import COMPLETE, Cell, criterion_of, mean_final, texts
from fedjax_drag.simulation.criterion import Criterion

_SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
})  # fmt: skip


def latex(
    cells: Sequence[Cell],
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    metric: str | None = None,
    ties: bool = False,
) -> str:
    """The table of :meth:`fedjax_drag.experiment.sweep.sweep.Sweep.to_latex`."""
    histories = [cell.history for cell in cells if cell.status in COMPLETE]
    if not histories:
        raise ValueError("to_latex: no cell of this sweep has come to an end")
    compared = criterion_of(cells)
    metric = compared.column if metric is None else metric
    measured = dict.fromkeys(name for history in histories for name, x in history.items() if np.ndim(x) == 1)
    checks.one_of("metric", metric, measured)
    own = Criterion(metric, higher_is_better(metric), kind(metric) is MetricKind.SHARE)
    by_metric = compared if metric in (compared.column, compared.test) else own
    axes = {axis: list(dict.fromkeys(cell.values[axis] for cell in cells)) for axis in cells[0].values}
    by, over = _sides([axis for axis in axes if axis != "seed"], rows, columns)
    lines, heads = ([*itertools.product(*(axes[axis] for axis in side))] for side in (by, over))
    groups = grouped(cells, lambda cell: tuple(cell.values[axis] for axis in (*by, *over)))
    labels = {axis: texts(values) for axis, values in axes.items()}
    found = [[groups.get((*line, *head), []) for line in lines] for head in heads]
    entries = [_column(column, metric, by_metric, ties) for column in found]
    names = [[_escaped(labels[axis][value]) for axis, value in zip(by, line, strict=True)] for line in lines]
    headings = [
        [_escaped(describe({axis: labels[axis][x]})) for axis, x in zip(over, head, strict=True)] for head in heads
    ]
    seeds = max(len(group) for column in found for group in column)
    interval = f", mean over {seeds} seeds and {LEVEL:.0%} interval" if seeds > 1 else ""
    percent = " in %" if by_metric.is_share else ""
    return "\n".join(
        [
            f"% {title(metric)}{percent} at the end of the run{interval}; needs booktabs",
            rf"\begin{{tabular}}{{{'l' * len(by)}{'r' * len(heads)}}}",
            r"\toprule",
            *_head(by, headings, metric),
            r"\midrule",
            *(_line([*line, *texts]) for line, *texts in zip(names, *entries, strict=True)),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _sides(axes: list[str], rows: Sequence[str] | None, columns: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The axes of rows and of columns, together all but the seed."""
    for name, side in (("rows", rows), ("columns", columns)):
        checks.names(name, side or (), axes, otherwise="the seeds are averaged over")
    if rows is None:
        free = [axis for axis in axes if axis not in (columns or ())]
        chosen = [axis for axis in free if not is_condition(axis)]
        rows = free if columns is not None else chosen or free
    if columns is None:
        columns = [axis for axis in axes if axis not in rows]
    if sorted([*rows, *columns]) != sorted(axes):
        raise ValueError(f"rows={[*rows]!r}, columns={[*columns]!r}: must have each of {axes} once")
    return list(rows), list(columns)


def _head(by: Sequence[str], labels: Sequence[Sequence[str]], metric: str) -> list[str]:
    """A line for each axis of the columns, whose values stand over all columns that they have in common."""
    names = [_escaped(axis) for axis in by]
    if not labels[0]:
        return [_line([*names, _escaped(title(metric))])]
    lines = []
    for depth in range(1, len(labels[0]) + 1):
        spans = [(prefix[-1], len([*same])) for prefix, same in itertools.groupby(label[:depth] for label in labels)]
        cells = [text if width == 1 else rf"\multicolumn{{{width}}}{{c}}{{{text}}}" for text, width in spans]
        lines.append(_line([*(names if depth == len(labels[0]) else [""] * len(names)), *cells]))
    return lines


def _column(groups: Sequence[Sequence[Cell]], metric: str, by: Criterion, ties: bool) -> list[str]:
    """The entries of a column, the best in bold and those within its interval perhaps underlined."""
    estimates = [_estimate(group, metric) for group in groups]
    means = np.array([one.mean for one in estimates])
    finite = means[np.isfinite(means)]
    best = (finite.max() if by.higher_is_better else finite.min()) if finite.size else np.nan
    margin = max((one.half for one in estimates if one.mean == best), default=0.0)
    entries = []
    for group, one in zip(groups, estimates, strict=True):
        mark = r"\mathbf" if one.mean == best else r"\underline" if ties and abs(one.mean - best) <= margin else ""
        text = one.text(by).replace("\N{PLUS-MINUS SIGN}", r"\pm") if np.isfinite(one.mean) else r"\textrm{--}"
        text = re.sub(r"e\+?(-?)0*(\d+)", r" \\cdot 10^{\1\2}", text)
        star = "^{*}" if any(cell.status != "done" for cell in group) else ""
        entries.append(f"${mark}{{{text}}}{star}$" if mark else f"${text}{star}$")
    return entries


def _estimate(cells: Sequence[Cell], metric: str) -> Estimate:
    """Over the cells that have come to an end and have the metric, which differ in their seeds."""
    found = [mean_final([cell], metric) for cell in cells if cell.status in COMPLETE and metric in cell.history]
    return estimate(np.array(found)) if found else Estimate(np.nan, np.nan)


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    return str(text).translate(_SPECIAL)
