"""A standing as one HTML page that needs nothing else."""

import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.arena import figures, tables
from fedjax_drag.experiment.arena.changes import changes
from fedjax_drag.experiment.arena.record import SHIPPED, PlayedRows
from fedjax_drag.experiment.build import catalog, registry
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.report import csv_files
from fedjax_drag.experiment.report.matrices import MatrixCell
from fedjax_drag.experiment.report.rendering import check_place, render
from fedjax_drag.files import write_text

_WIDE = ("place", "clean", "mean", "needs", "passes", "minutes")
"""Columns that a narrow page leaves out."""

_ROOT = Path(__file__).parents[3]


class PaperReference(NamedTuple):
    """A part of an entry: where it comes from.

    Attributes:
      name: in the registry.
      paper: its citation, or empty.
      file: of its code, within the package.
      address: of the file, relative to a page among the documentation of a checkout; else empty.
    """

    name: str
    paper: str
    file: str
    address: str


def write(standing: PlayedRows, path: Path, old: PlayedRows | None = None) -> Path:
    """Writes the page.

    Args:
      standing: what it shows.
      path: of the file.
      old: an earlier standing, from which the page tells what has changed.

    Raises:
      ValueError: the standing has no rows, or ``path`` is no file of a page.
    """
    if not standing.rows:
        raise ValueError(f"standing={standing.name!r}: has no entry that has been played")
    check_place("html", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("arena.html", _content(standing, old, path.parent)))
    return path


def _content(standing: PlayedRows, old: PlayedRows | None, folder: Path) -> dict[str, Any]:
    """All that the template asks for."""
    head, *lines = tables.ranks(standing)
    return {
        "title": standing.name,
        "header": [
            ("protocol", f"version {standing.version}"),
            *([("played", when)] if (when := tables.played(standing)) else []),
            ("tasks", "; ".join(standing.tasks)),
            ("attacks", ", ".join(standing.opponents[1:])),
            ("seeds", ", ".join(map(str, standing.seeds))),
        ],
        "about": " ".join(filter(None, [tables.doubts(standing), tables.about(standing)])),
        "facts": _facts(standing),
        "failures": [(label, message) for label, row in standing.rows.items() for message in row.failures],
        "head": head,
        "lines": lines,
        "wide": _WIDE,
        "csv": csv_files.link(_figures(standing)),
        "sources": [
            (label, standing.rows[label].is_own, _sources(standing.rows[label].method, folder))
            for label in standing.scores()
        ],
        "rules": _address("docs/rules.md", folder),
        "arena": _known_as(standing),
        "own": [label for label, row in standing.rows.items() if row.is_own],
        "columns": ["worst case", *standing.opponents],
        "matrices": [_matrix(standing, place) for place in _places(standing)],
        "knowledge": _inline(standing),
        "knowledge_csv": csv_files.link(_knowledge(standing)),
        "old": old and f"version {old.version}, {len(old.rows)} entries",
        "changes": changes(old, standing) if old else [],
        "yaml": written(standing.protocol) if standing.protocol else "",
        "charts": [],
    }


def _facts(standing: PlayedRows) -> list[tuple[str, str, str]]:
    """Headline figures: what it is, the figure, and a line about it."""
    scores = standing.scores()
    best = next(iter(scores))
    facts = [("best worst case", f"{100 * scores[best].worst.mean:.1f} %", best)]
    free = [label for label in scores if not standing.rows[label].needs]
    if free and free[0] != best:
        facts.append(("that needs to know nothing", f"{100 * scores[free[0]].worst.mean:.1f} %", free[0]))
    hours = sum(row.seconds for row in standing.rows.values()) / 3600
    return [
        *facts,
        ("entries", str(len(scores)), f"{len(standing.tasks)} tasks, {len(standing.opponents) - 1} attacks"),
        ("hours", f"{hours:.1f}", "of all runs, tuning included"),
    ]


def _places(standing: PlayedRows) -> list[int | None]:
    """Of all tasks together, and of each."""
    return [None, *range(len(standing.tasks))] if len(standing.tasks) > 1 else [0]


def _matrix(standing: PlayedRows, place: int | None) -> dict[str, Any]:
    """A map of accuracies by attack, the worst case first, and the settings chosen in that task."""
    (_, *lines), values = tables.heat(standing, place)
    shares = tables.shares(values)
    rows = []
    for line, strength in zip(lines, shares, strict=True):
        entries = [MatrixCell(text, round(100 * share)) for text, share in zip(line[1:], strength, strict=True)]
        rows.append((line[0], [entries[-1], *entries[:-1]]))
    settings = (
        [] if place is None else [(line[0], line[1]) for line in tables.task(standing, place)[1:] if line[1] != "-"]
    )
    title = f"Mean over {len(standing.tasks)} tasks" if place is None else standing.tasks[place]
    table = csv_files.link([["entry", "worst case", *standing.opponents], *_numbers(lines, values)])
    return {"title": title, "rows": rows, "settings": settings, "csv": table}


def _numbers(lines: list[list[str]], values: np.ndarray) -> list[list[Any]]:
    """The rows of a map, unrounded, the worst case first."""
    return [[line[0], row[-1], *row[:-1]] for line, row in zip(lines, values.tolist(), strict=True)]


def _figures(standing: PlayedRows) -> list[list[Any]]:
    """The table of the standing as numbers, accuracies as shares."""
    names = ("clean", "worst", "mean")
    head = ["entry", "place", "rank", "last_rank", *(f"{name}{end}" for name in names for end in ("", "_half_width"))]
    rows = [
        [label, place, one.rank, one.last_rank, *one.clean, *one.worst, *one.mean]
        for place, (label, one) in enumerate(standing.scores().items(), start=1)
    ]
    facts = [[row.knowledge, row.passes, row.seconds] for row in map(standing.rows.__getitem__, standing.scores())]
    return [[*head, "needs", "passes", "seconds"], *(row + fact for row, fact in zip(rows, facts, strict=True))]


def _knowledge(standing: PlayedRows) -> list[list[Any]]:
    scores = standing.scores()
    return [["entry", "needs", "worst", "half_width"]] + [
        [label, standing.rows[label].knowledge, *one.worst] for label, one in scores.items()
    ]


def _known_as(standing: PlayedRows) -> str:
    """The standing as Python and the command line name it: one of the package, or the file beside the page."""
    name = standing.name.removeprefix("arena_")
    return name if (SHIPPED / f"{name}.json").is_file() else "arena.json"


def _sources(method: Mapping[str, Any], folder: Path) -> list[PaperReference]:
    """The parts of the package that a method is made of, the outermost first."""
    found = []
    for key, name in dict.fromkeys(_named(method)):
        builder = registry.TABLES.get(key, {}).get(name)
        file = None if builder is None else inspect.getsourcefile(builder)
        if builder is not None and file is not None:
            place = Path(file).relative_to(_ROOT).as_posix()
            found.append(PaperReference(name, catalog.paper(key, builder), place, _address(place, folder)))
    return found


def _named(method: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, str]]:
    """Keys and names of components, those of a component's arguments after it."""
    for name, value in method.items():
        if name == "name" and key:
            yield key, str(value)
        elif isinstance(value, Mapping):
            yield from _named(value, name)
        elif isinstance(value, str) and name in registry.TABLES:
            yield name, value


def _address(file: str, folder: Path) -> str:
    """From a page among the documentation of a checkout; empty elsewhere, since the page may be moved."""
    here = Path(os.path.realpath(folder))
    inside = here.is_relative_to(_ROOT / "docs") and (_ROOT / file).is_file()
    return Path(os.path.relpath(_ROOT / file, here)).as_posix() if inside else ""


def _inline(standing: PlayedRows) -> str:
    """The figure in the page's own colours."""
    drawn = figures.as_svg(figures.knowledge(standing))
    drawn = drawn[drawn.index("<svg") :].replace("#222222", "currentColor").replace("#000000", "currentColor")
    return drawn.replace("#ffffff", "none").replace("#e4e4e4", "var(--rule)")
