"""A standing as one HTML page that needs nothing else."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.arena import figures, tables
from fedjax_drag.experiment.arena.changes import changes
from fedjax_drag.experiment.arena.own_code import parts_of
from fedjax_drag.experiment.arena.scores import KEPT, measured, withstood
from fedjax_drag.experiment.arena.standing import FILE, REACHED, SHIPPED, Row, Standing
from fedjax_drag.experiment.build import catalog
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.figures.style import inline
from fedjax_drag.experiment.report import csv_files
from fedjax_drag.experiment.report.matrices import WORST, MatrixTable, csv_file, shaded
from fedjax_drag.experiment.report.rendering import check_place, render
from fedjax_drag.files import write_text
from fedjax_drag.simulation.criterion import Criterion

_WIDE = ("place", "clean", "mean", "needs", "passes", "minutes", "withstands")
"""Columns that a narrow page leaves out."""

_ROOT = Path(__file__).parents[3]


class Badge(NamedTuple):
    """What an entry is made of, what it withstands, and what it must know.

    Attributes:
      label: its label.
      row: its row.
      sources: name, paper, file and its address of its parts that are of the package, the outermost first.
      words: what it is found by: its label, its parts and their papers.
      withstood: labels of the attacks that it withstands.
      others: those that it does not.
      worst: the attack that leaves the worst figure, mean over the tasks and seeds.
      left: that figure.
    """

    label: str
    row: Row
    sources: list[tuple[str, str, str, str]]
    words: str
    withstood: list[str]
    others: list[str]
    worst: str
    left: str


def write(standing: Standing, path: Path, since: Standing | None = None) -> Path:
    """Writes the page.

    Args:
      standing: what it shows.
      path: of the file.
      since: an earlier standing, from which the page tells what has changed.

    Raises:
      ValueError: the standing has no rows, or ``path`` is no file of a page.
    """
    if not standing.rows:
        raise ValueError(f"standing={standing.name!r}: has no entry that has been played")
    check_place("html", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("arena.html", _content(standing, since, path.parent)))
    return path


def _content(standing: Standing, since: Standing | None, folder: Path) -> dict[str, Any]:
    """All that the template asks for."""
    (head, *lines), by = standing.lines(), standing.criterion
    name = standing.name.removeprefix("arena_")
    badges = [_badge(standing, label, folder) for label in standing.scores()]
    all_tasks = [(f"Mean over {len(standing.tasks)} tasks", _matrix(standing, None), "")]
    by_task = [
        (task, _matrix(standing, place), _settings(standing, place)) for place, task in enumerate(standing.tasks)
    ]
    return {
        "title": standing.name,
        "measure": by.label,
        "measured": measured(by),
        "failure": tables.failure(standing),
        "header": [
            ("protocol", f"version {standing.version}"),
            ("played", tables.played(standing)),
            ("tasks", "; ".join(standing.tasks)),
            ("attacks", ", ".join(standing.opponents[1:])),
            ("seeds", ", ".join(map(str, standing.seeds))),
        ],
        "about": " ".join(filter(None, [tables.doubts(standing), tables.about(standing)])),
        "facts": _facts(standing),
        "failures": [(label, message) for label, row in standing.rows.items() for message in row.failures],
        "head": [*head, "withstands"],
        "lines": list(zip(lines, badges, strict=True)),
        "badges": badges,
        "kept": f"{round(100 * KEPT)} %" if by.higher_is_better else f"at most {round(100 * (2 - KEPT))} %",
        "kinds": sorted({need for row in standing.rows.values() for need in row.needs}),
        "json": csv_files.address("application/json", json.dumps(dataclasses.asdict(standing))),
        "wide": _WIDE,
        "csv": csv_files.link(_figures(standing)),
        "rules": _address("docs/rules.md", folder),
        "arena": name if (SHIPPED / f"{name}.json").is_file() else FILE,
        "own": standing.own,
        "backdoors": _backdoors(standing) if standing.backdoors else None,
        "about_backdoors": tables.about_backdoors(),
        "matrices": [*(all_tasks if len(by_task) > 1 else []), *by_task],
        "knowledge": inline(figures.knowledge(standing)),
        "since": since and f"version {since.version}, {len(since.rows)} entries",
        "changes": changes(since, standing) if since else [],
        "yaml": written(standing.protocol) if standing.protocol else "",
    }


def _badge(standing: Standing, label: str, folder: Path) -> Badge:
    row, attacks, by = standing.rows[label], standing.opponents[1:], standing.criterion
    held = withstood(row.figures, by)
    left = row.figures[:, 1:].mean(axis=(0, 2))
    most = int(by.merits(left).argmin())
    places = [(part, part.file.relative_to(_ROOT).as_posix()) for part in parts_of(row.method)]
    sources = [(x.name, catalog.paper(x.key, x.builder), place, _address(place, folder)) for x, place in places]
    words = " ".join([label, *(f"{name} {paper}" for name, paper, *_ in sources)])
    kept, lost = ([name for name, holds in zip(attacks, held, strict=True) if holds == want] for want in (True, False))
    return Badge(label, row, sources, words, kept, lost, attacks[most], _figure(by, left[most]))


def _figure(by: Criterion, value: float) -> str:
    return by.figure(value) + " %" * by.is_share


def _facts(standing: Standing) -> list[tuple[str, str, str]]:
    """Headline figures: what it is, the figure, and a line about it."""
    scores, by = standing.scores(), standing.criterion
    best = next(iter(scores))
    facts = [("best worst case", _figure(by, scores[best].worst.mean), best)]
    free = next((label for label in scores if not standing.rows[label].needs), best)
    if free != best:
        facts.append(("that needs to know nothing", _figure(by, scores[free].worst.mean), free))
    hours = sum(row.seconds for row in standing.rows.values()) / 3600
    return [
        *facts,
        ("entries", str(len(scores)), f"{len(standing.tasks)} tasks, {len(standing.opponents) - 1} attacks"),
        ("hours", f"{hours:.1f}", "of all runs, tuning included"),
    ]


def _matrix(standing: Standing, place: int | None) -> MatrixTable:
    """A map of accuracies by attack, the worst case first."""
    (labels, values), by = standing.by_attack(place), standing.criterion
    values = values[:, [-1, *range(values.shape[1] - 1)]]
    columns = [WORST, *standing.opponents]
    texts = [[by.figure(value) for value in line] for line in values]
    rows = shaded(labels, texts, by.merits(values))
    return MatrixTable("entry", columns, rows, csv_file("entry", columns, labels, values))


def _backdoors(standing: Standing) -> MatrixTable:
    """What each backdoor has reached; the lower its success, the stronger the shade."""
    (_, *columns), *lines = tables.backdoors(standing)
    labels, estimates = [label for label, *_ in lines], [figures for _, *figures in lines]
    texts = [[str(one) for one in figures] for figures in estimates]
    values = np.array([[one.mean for one in figures] for figures in estimates])
    low = np.array([name != "accuracy" for name in REACHED] * len(standing.backdoors))
    rows = shaded(labels, texts, np.where(low, 1 - values, values))
    return MatrixTable("entry", columns, rows, csv_file("entry", columns, labels, values))


def _settings(standing: Standing, place: int) -> str:
    """The settings chosen in a task, of the entries that have any."""
    _, *lines = tables.task(standing, place)
    return "; ".join(f"{label} {setting}" for label, setting, *_ in lines if setting != "-")


def _figures(standing: Standing) -> list[list[Any]]:
    """The table of the standing as numbers, accuracies as shares."""
    names = [f"{name}{end}" for name in ("clean", "worst", "mean") for end in ("", "_half_width")]
    lines: list[list[Any]] = [["entry", "place", "rank", "last_rank", *names, "needs", "passes", "seconds"]]
    for place, (label, one) in enumerate(standing.scores().items(), start=1):
        row = standing.rows[label]
        figures = [*one.clean, *one.worst, *one.mean, row.knowledge, row.passes, row.seconds]
        lines.append([label, place, one.rank, one.last_rank, *figures])
    return lines


def _address(file: str, folder: Path) -> str:
    """From a page among the documentation of a checkout; empty elsewhere, since the page may be moved."""
    here = Path(os.path.realpath(folder))
    inside = here.is_relative_to(_ROOT / "docs") and (_ROOT / file).is_file()
    return Path(os.path.relpath(_ROOT / file, here)).as_posix() if inside else ""
