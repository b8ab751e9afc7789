"""The page: what is on it, and in which order."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag import checks
from fedjax_drag.experiment.config.config import slug
from fedjax_drag.experiment.figures.labels import clean, header, method
from fedjax_drag.experiment.report import (
    charts,
    clients,
    csv_files,
    curves,
    every_client,
    matrices,
    parameters,
    skew,
    tables,
)
from fedjax_drag.experiment.report.curves import Group
from fedjax_drag.experiment.report.matrices import MatrixTable
from fedjax_drag.experiment.report.reading import Found, ReportedRun, finite, read
from fedjax_drag.experiment.report.rendering import check_place, render
from fedjax_drag.experiment.run import metric_kinds, results
from fedjax_drag.files import write_text
from fedjax_drag.simulation.result import TEST

_WRONG = 20  # most messages of what went wrong
_ENVIRONMENTS = 3


class Fact(NamedTuple):
    """A headline figure: what it is, the figure, and a line about it."""

    name: str
    figure: str
    about: str


def write(
    folder: str | Path, out: str | Path | None = None, target: float | None = None, with_skew: bool = True
) -> Path:
    """Writes what is in a results folder as one HTML page that needs no network.

    Figures and tables are those of the runs that have come to their end; what is interrupted, diverged, failed or
    cannot be read is marked.

    Args:
      folder: of a run, a comparison or a sweep; nothing but ``out`` is written into it.
      out: the page, ending in ``.html``; default ``report.html`` in ``folder``.
      target: accuracy in (0, 1] of which the table tells when it was reached, validation accuracy where all runs have
        it, else test accuracy; default the largest multiple of 0.05 that at least half of the lines reach.
      with_skew: whether the data are loaded and split anew, to show how they are spread over the clients.

    Returns:
      The path of the page.

    Raises:
      FileNotFoundError: there is no such results folder.
      ValueError: its configuration is not valid, it holds a single run that cannot be read, ``target`` is out of range
        or ``out`` is no file of a page.
    """
    if target is not None:
        checks.in_range("target", target, 0.0, 1.0)
    place = Path(folder) / results.REPORT if out is None else Path(out)
    check_place("out", place)
    with np.errstate(all="ignore"):  # figures may come from anywhere; what is not finite is left out where it is shown
        page = render(
            "page.html", _content(read(Path(folder)), Path(folder), target, with_skew, _address(Path(folder), place))
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, page)
    return place


def _content(found: Found, folder: Path, target: float | None, with_skew: bool, address: str | None) -> dict[str, Any]:
    """All that the template asks for."""
    groups = curves.groups(found.runs)
    aim = tables.target_for(groups) if target is None else target
    drawing: list[dict[str, Any]] = []
    matrix, by_parameters = matrices.matrix(found), matrices.parameter_map(found, parameters.numeric(found))
    sweep_of_two = len(by_parameters) == 1 and matrix is not None and not matrix.worst  # the map is the matrix
    configs = [run.config for run in found.runs]
    splits, about_splits = skew.splits(found.runs, drawing) if with_skew else ([], "Not asked for.")
    return {
        "title": clean(found.name, 80),
        "variant": clean(_variant(found.name, folder.resolve().name), 160),
        "kind": found.kind,
        "header": header(configs),
        "facts": _facts(found, groups, matrix, aim),
        "wrong": _wrong(found.runs),
        "matrix": None if sweep_of_two else matrix,
        "maps": by_parameters,
        "parameters": parameters.blocks(found, drawing),
        "differences": matrices.differences(groups, matrix is not None and matrix.worst),
        "blocks": curves.blocks(groups, aim, drawing),
        "seeds": max(len(group.runs) for group in groups),
        "target": aim,
        "chosen": target is None,
        "bands": charts.MOST_BANDS,
        "settings": any(group.column for group in groups),
        "address": address,
        "measure": metric_kinds.title(curves.choice_of(groups)),
        "table": tables.results(groups, aim),
        "folders": address is not None and any(run.place for run in found.runs),
        "every_client": every_client.blocks(groups, drawing),
        "clients": clients.diagnostics(found.runs, drawing),
        "clients_left": max(0, len(found.runs) - clients.RUNS),
        "splits": splits,
        "about_splits": about_splits,
        "yaml": found.yaml,
        "environments": _environments(found.runs),
        "charts": drawing,
        "files": [csv_files.link(csv_files.of_chart(chart)) for chart in drawing],
    }


def _address(folder: Path, page: Path) -> str | None:
    """Of the folder from the page, as long as it lies beside or below it; None elsewhere: a page tells no paths."""
    here, there = (Path(os.path.realpath(place)) for place in (page.parent, folder))
    return f"./{there.relative_to(here).as_posix()}" if there.is_relative_to(here) else None


def _variant(name: str, folder: str) -> str:
    """What tells this run from others of its configuration: the overrides that its folder is named by, or that name."""
    own = slug(name)
    if folder.startswith(f"{own},"):
        return folder.removeprefix(f"{own},").replace("=name-", "=").replace(",", ", ")
    return "" if folder == own else folder


def _facts(found: Found, groups: Sequence[Group], matrix: MatrixTable | None, target: float | None) -> list[Fact]:
    """What a reader wants to know first."""
    begun = [group for group in groups if group.drawn]
    if not begun:
        return [Fact("runs", str(len(found.runs)), "none has been evaluated")]
    metric = curves.choice_of(groups)
    if found.kind == "run":
        return _facts_of_run(found.runs[0], metric, target)
    ended = [group for group in begun if all(run.status != "diverged" for run in group.drawn)] or begun
    best = max(ended, key=lambda group: np.nan_to_num(group.final(metric), nan=-1.0))
    name = "highest final accuracy" if metric == TEST else "final test accuracy of the best"
    about = ", ".join(filter(None, (best.row, best.column, _choice(metric, best.final(metric)))))
    facts = [Fact(name, _percent(best.final(TEST)), about)]
    if matrix is not None and matrix.worst and matrix.rows[0][1][0].shade is not None:  # the best setting is that one
        label, (worst, *others) = matrix.rows[0]
        name = "best worst case" if matrix.metric == TEST else f"best worst case, {metric_kinds.title(matrix.metric)}"
        facts = [Fact(name, f"{worst.text} %", f"{label}, over {len(others)} conditions")]
    if target is not None and found.kind == "comparison":
        rounds = [(tables.rounds_to(run, metric, target), group.row) for group in begun for run in group.drawn]
        reached = [(number, row) for number, row in rounds if number is not None]
        if reached:
            number, row = min(reached)
            about = row if metric == TEST else f"{row}, {metric_kinds.title(metric)}"
            facts.append(Fact(f"fewest rounds to {100 * target:g} %", str(number), about))
    counts = Counter(run.status for run in found.runs)
    about = ", ".join(f"{number} {status}" for status, number in counts.items())
    return [*facts, Fact("runs", str(len(found.runs)), about)]


def _choice(metric: str, accuracy: float) -> str:
    """By what a round or a setting is chosen."""
    return (
        "chosen on the test set" if metric == TEST else f"chosen by {metric_kinds.title(metric)} {_percent(accuracy)}"
    )


def _facts_of_run(run: ReportedRun, metric: str, target: float | None) -> list[Fact]:
    best = tables.best_of(run, metric)
    last = int(run.history["round"][-1])
    final = float(run.history[TEST][-1])
    name = "best test accuracy" if metric == TEST else "test accuracy of the best round"
    facts = [
        Fact(
            "final test accuracy",
            _percent(final),
            f"{method(run.config)}, round {last}",
        ),
        Fact(name, _percent(best.test_accuracy), f"round {best.round}, {_choice(metric, best.accuracy)}"),
    ]
    if target is not None:
        number = tables.rounds_to(run, metric, target)
        reached = str(number or "not reached")
        facts.append(Fact(f"rounds to {100 * target:g} %", reached, metric_kinds.title(metric)))
    seconds = finite(run.figures.get("seconds"))
    about = run.message or (f"{seconds:,.0f} s of wall clock" if seconds is not None else "")
    return [*facts, Fact("status", run.status, about)]


def _percent(accuracy: float) -> str:
    return (
        f"{100 * accuracy:.1f} %" if abs(accuracy) < 10.0 else "not finite" if np.isnan(accuracy) else f"{accuracy:.3g}"
    )


def _wrong(runs: Sequence[ReportedRun]) -> list[tuple[str, str]]:
    """Messages of runs that did not come to a good end, with the runs that they are about."""
    found: dict[str, list[str]] = {}
    for run in runs:
        if run.status != "done":
            found.setdefault(f"{run.status}: {run.message}" if run.message else run.status, []).append(run.label)
    told = [
        (message, "; ".join(labels[:4]) + (f"; and {len(labels) - 4} more" if len(labels) > 4 else ""))
        for message, labels in found.items()
    ]
    return told[:_WRONG] + ([("and more", f"{len(told) - _WRONG} other messages")] if len(told) > _WRONG else [])


def _environments(runs: Sequence[ReportedRun]) -> list[str]:
    """What the numbers depend on beside the configuration, once for all runs that agree but for seed and time."""
    own = ("seed", "started")
    texts = [
        json.dumps({key: value for key, value in run.environment.items() if key not in own}, indent=2)
        for run in runs
        if run.environment
    ]
    told = [text if number == len(texts) else f"{text}\n({number} runs)" for text, number in Counter(texts).items()]
    return told[:_ENVIRONMENTS] + ([f"and {len(told) - _ENVIRONMENTS} others"] if len(told) > _ENVIRONMENTS else [])
