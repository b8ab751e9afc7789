"""The page: what is on it, and in which order."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag import checks
from fedjax_drag.experiment.config.config import slug
from fedjax_drag.experiment.figures.labels import clean, header, method
from fedjax_drag.experiment.plain import finite, first, grouped
from fedjax_drag.experiment.report import charts, clients, csv_files, curves, matrices, skew, tables
from fedjax_drag.experiment.report.pictures import picture
from fedjax_drag.experiment.report.reading import Found, ReportedRun, read
from fedjax_drag.experiment.report.rendering import check_place, plotly_js, render
from fedjax_drag.experiment.run import metric_kinds, results
from fedjax_drag.files import write_text
from fedjax_drag.simulation.criterion import TEST, Criterion

_ENVIRONMENTS = 3

Fact = tuple[str, str, str]
"""A headline figure: what it is, the figure, and a line about it."""


def write(
    folder: str | Path, out: str | Path | None = None, target: float | None = None, with_skew: bool = True
) -> Path:
    """Writes what is in a results folder as one HTML page that needs no network.

    Its charts are interactive where the package plotly is installed (the extra ``report``), else still images.

    Figures and tables are those of the runs that have come to their end; what is interrupted, diverged, failed or
    cannot be read is marked.

    Args:
      folder: of a run, a comparison or a sweep; nothing but ``out`` is written into it.
      out: the page, ending in ``.html``; default ``report.html`` in ``folder``.
      target: accuracy in (0, 1], or value of another criterion, of which the table tells when it was reached, on the
        validation examples where all runs have them; default the largest multiple of 0.05 that at least half of the
        lines reach, of a share that is better where it is higher.
      with_skew: whether the data are loaded and split anew, to show how they are spread over the clients.

    Returns:
      The path of the page.

    Raises:
      FileNotFoundError: there is no such results folder.
      ValueError: its configuration is not valid, it holds a single run that cannot be read, ``target`` is out of range
        or ``out`` is no file of a page.
    """
    folder = Path(folder)
    place = folder / results.REPORT if out is None else Path(out)
    check_place("out", place)
    with np.errstate(all="ignore"):  # figures may come from anywhere; what is not finite is left out where it is shown
        found = read(folder)
        content = _content(found, target, with_skew) | _names(folder, place, found.name)
        page = render("page.html", content, plotly_js())
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, page)
    return place


def _content(found: Found, target: float | None, with_skew: bool) -> dict[str, Any]:
    """All that the template asks for, but what depends on where the page is."""
    by = found.criterion
    if target is not None:
        limits = {"low": 0.0, "high": 1.0, "open_low": True} if by.is_share else {}
        checks.in_range("target", target, **limits)
    aim = tables.target_for(found) if target is None else target
    matrix, maps = matrices.matrix(found), matrices.parameter_map(found, curves.numeric(found))
    worst = matrix is not None and matrix.worst
    splits, about_splits = skew.splits(found.runs) if with_skew else ([], "Not asked for.")
    return {
        "title": clean(found.name, 80),
        "kind": found.kind,
        "header": header([run.config for run in found.runs]),
        "facts": _facts(found, worst, aim),
        "wrong": _wrong(found.runs),
        "worst": worst,
        "matrix": matrix if worst or len(maps) != 1 else None,  # else the map is the matrix
        "maps": maps,
        "parameters": curves.by_parameter(found),
        "differences": matrices.differences(found, worst),
        "blocks": curves.over_rounds(found, aim),
        "seeds": max(len(group.runs) for group in found.groups),
        "goal": None if aim is None else tables.goal(by, aim),
        "by": by,
        "chosen": target is None,
        "bands": charts.MOST_BANDS,
        "settings": any(group.column for group in found.groups),
        "measure": metric_kinds.title(by.column),
        "table": tables.results(found, aim),
        "every_client": curves.every_client(found),
        "clients": clients.diagnostics(found.runs),
        "clients_left": max(0, len(found.runs) - clients.RUNS),
        "splits": splits,
        "about_splits": about_splits,
        "yaml": found.yaml,
        "environments": _environments(found.runs),
        "csv_of": csv_files.of_chart,
        "picture": picture,
        "slug": slug,
    }


def _names(folder: Path, page: Path, name: str) -> dict[str, Any]:
    """How a page calls the folder.

    ``variant`` is what tells it from others of its configuration, the overrides that it is named by, or its own name;
    ``address`` leads to it from a page beside or above it, and is None elsewhere: a page tells no paths.
    """
    here, there = (Path(os.path.realpath(place)) for place in (page.parent, folder))
    address = f"./{there.relative_to(here).as_posix()}" if there.is_relative_to(here) else None
    return {"variant": clean(there.name.removeprefix(slug(name)).lstrip("-,"), 160), "address": address}


def _facts(found: Found, crossed: bool, target: float | None) -> list[Fact]:
    """What a reader wants to know first."""
    by = found.criterion
    begun = [group for group in found.groups if group.drawn]
    if not begun:
        return [("runs", str(len(found.runs)), "none has been evaluated")]
    if found.kind == "run":
        return _facts_of_run(found.runs[0], by, target)
    facts: list[Fact] = []
    if crossed and (best := curves.best_setting(found, crossed)):
        name = "best worst case" if by.on == TEST else f"best worst case, {metric_kinds.title(by.column)}"
        worst = by.worst([group.final(by.column) for group in best])
        facts.append((name, _shown(by, worst), f"{best[0].row}, over {len(best)} conditions"))
    elif best := curves.best_setting(found, False):
        highest = f"{'highest' if by.higher_is_better else 'lowest'} final {by.label}"
        name = highest if by.on == TEST else f"final test {by.label} of the best"
        about = ", ".join(filter(None, (best[0].row, best[0].column, _choice(by, best[0].final(by.column)))))
        facts.append((name, _shown(by, best[0].final(by.test)), about))
    if target is not None and found.kind == "comparison":
        rounds = [(by.round_reached(run.history, target), group.row) for group in begun for run in group.drawn]
        if reached := [(number, row) for number, row in rounds if number is not None]:
            number, row = min(reached)
            about = row if by.on == TEST else f"{row}, {metric_kinds.title(by.column)}"
            facts.append((f"fewest rounds to {tables.goal(by, target)}", str(number), about))
    counts = Counter(run.status for run in found.runs)
    about = ", ".join(f"{number} {status}" for status, number in counts.items())
    return [*facts, ("runs", str(len(found.runs)), about)]


def _choice(by: Criterion, value: float) -> str:
    """By what a round or a setting is chosen."""
    on_test = by.on == TEST
    return "chosen on the test set" if on_test else f"chosen by {metric_kinds.title(by.column)} {_shown(by, value)}"


def _facts_of_run(run: ReportedRun, by: Criterion, target: float | None) -> list[Fact]:
    value, on_test, best = (tables.at_best(run, by, column) for column in (by.column, by.test, "round"))
    last = int(run.history["round"][-1])
    name = f"best test {by.label}" if by.on == TEST else f"test {by.label} of the best round"
    facts = [
        (f"final test {by.label}", _shown(by, float(run.history[by.test][-1])), f"{method(run.config)}, round {last}"),
        (name, _shown(by, on_test), f"round {best:.0f}, {_choice(by, value)}"),
    ]
    if target is not None:
        reached = by.round_reached(run.history, target)
        shown = "not reached" if reached is None else str(reached)
        facts.append((f"rounds to {tables.goal(by, target)}", shown, metric_kinds.title(by.column)))
    seconds = finite(run.figures.get("seconds"))
    about = run.message or (f"{seconds:,.0f} s of wall clock" if seconds is not None else "")
    return [*facts, ("status", run.status, about)]


def _shown(by: Criterion, value: float) -> str:
    if np.isnan(value):
        return "not finite"
    return f"{by.figure(value)} %" if by.is_share and abs(value) < 10.0 else f"{value:.4g}"


def _wrong(runs: Sequence[ReportedRun]) -> list[tuple[str, str]]:
    """Messages of runs that did not come to a good end, with the runs that they are about."""
    said = lambda run: f"{run.status}: {run.message}" if run.message else run.status
    found = grouped([run for run in runs if run.status != "done"], said)
    return [(message, "; ".join(first([run.label for run in same], 4))) for message, same in found.items()]


def _environments(runs: Sequence[ReportedRun]) -> list[str]:
    """What the numbers depend on beside the configuration, once for all runs that agree but for seed and time."""
    facts = ({name: x for name, x in run.environment.items() if name not in ("seed", "started")} for run in runs)
    counts = Counter(json.dumps(one, indent=2) for one in facts if one)
    return first([x if len(counts) == 1 else f"{x}\n({n} runs)" for x, n in counts.items()], _ENVIRONMENTS)
