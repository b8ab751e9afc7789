"""A standing as one HTML page that needs nothing else."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_drag.experiment.arena import figures, tables
from fedjax_drag.experiment.arena.changes import changes
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.report.rendering import check_place, render
from fedjax_drag.experiment.report.tables import Entry
from fedjax_drag.files import write_text

if TYPE_CHECKING:
    from fedjax_drag.experiment.arena.standing import Standing


def write(standing: "Standing", path: Path, old: "Standing | None" = None) -> Path:
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
    write_text(path, render("arena.html", _content(standing, old)))
    return path


def _content(standing: "Standing", old: "Standing | None") -> dict[str, Any]:
    """All that the template asks for."""
    head, *lines = tables.ranks(standing)
    return {
        "title": standing.name,
        "header": [
            ("version", str(standing.version)),
            ("tasks", "; ".join(standing.tasks)),
            ("attacks", ", ".join(standing.opponents[1:])),
            ("seeds", ", ".join(map(str, standing.seeds))),
        ],
        "about": tables.about(standing),
        "facts": _facts(standing),
        "failures": [(label, message) for label, row in standing.rows.items() for message in row.failures],
        "head": head,
        "lines": lines,
        "own": [label for label, row in standing.rows.items() if row.is_own],
        "columns": ["worst case", *standing.opponents],
        "matrices": [_matrix(standing, place) for place in _places(standing)],
        "knowledge": _inline(standing),
        "old": old and f"version {old.version}, {len(old.rows)} entries",
        "changes": changes(old, standing) if old else [],
        "yaml": written(standing.protocol) if standing.protocol else "",
        "charts": [],
    }


def _facts(standing: "Standing") -> list[tuple[str, str, str]]:
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


def _places(standing: "Standing") -> list[int | None]:
    """Of all tasks together, and of each."""
    return [None, *range(len(standing.tasks))] if len(standing.tasks) > 1 else [0]


def _matrix(standing: "Standing", place: int | None) -> dict[str, Any]:
    """A map of accuracies by attack, the worst case first, and the settings chosen in that task."""
    (_, *lines), values = tables.heat(standing, place)
    shares = tables.shares(values)
    rows = []
    for line, strength in zip(lines, shares, strict=True):
        entries = [Entry(text, round(100 * share)) for text, share in zip(line[1:], strength, strict=True)]
        rows.append((line[0], [entries[-1], *entries[:-1]]))
    settings = (
        [] if place is None else [(line[0], line[1]) for line in tables.task(standing, place)[1:] if line[1] != "-"]
    )
    title = f"Mean over {len(standing.tasks)} tasks" if place is None else standing.tasks[place]
    return {"title": title, "rows": rows, "settings": settings}


def _inline(standing: "Standing") -> str:
    """The figure in the page's own colours."""
    drawn = figures.as_svg(figures.knowledge(standing))
    drawn = drawn[drawn.index("<svg") :].replace("#222222", "currentColor").replace("#000000", "currentColor")
    return drawn.replace("#ffffff", "none").replace("#e4e4e4", "var(--rule)")
