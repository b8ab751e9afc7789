"""The result of an arena: a JSON file with every test accuracy, and tables that are made of it alone."""

import dataclasses
import datetime
import itertools
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_drag.experiment.arena import requirements, tables
from fedjax_drag.experiment.arena.changes import changes
from fedjax_drag.experiment.arena.protocol import Arena, Entry, load_arena
from fedjax_drag.experiment.arena.record import SHIPPED, PlayedRows, Row, fields_of
from fedjax_drag.experiment.arena.trials import EntryOutcome, Trials, folder_of
from fedjax_drag.experiment.config.own import as_text
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.lock import refuse_links, waited_for
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep.grid import describe
from fedjax_drag.files import read_json, write_text
from fedjax_drag.simulation.progress import unless_quiet
from fedjax_drag.version import __version__

FILE, TABLE, PAGE = "arena.json", "arena.md", "arena.html"
"""What is written into an arena's folder, beside the folders of its entries."""


@dataclasses.dataclass(frozen=True)
class Standing(PlayedRows):
    """Rows of entries that have played by the same protocol, and the files, tables and figures that show them."""

    def write(self, folder: str | Path) -> None:
        """Writes :data:`FILE` and :data:`TABLE`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        results.write_json(folder / FILE, dataclasses.asdict(self))
        write_text(folder / TABLE, self.table())

    def table(self, since: "Standing | None" = None) -> str:
        """Ranks over all tasks, then every task by itself, as Markdown.

        Args:
          since: an earlier standing; the table tells what has changed.
        """
        return tables.page(self, [] if since is None else changes(since, self))

    def page(self, path: str | Path, since: "Standing | None" = None) -> Path:
        """Writes one HTML page with tables, maps and figures, and what has changed since an earlier standing.

        Returns:
          Its path.
        """
        from fedjax_drag.experiment.arena import page  # here: matplotlib is slow

        return page.write(self, Path(path), since)

    def figures(self, folder: str | Path) -> list[Path]:
        """Writes the maps of defences by attacks, and accuracy against knowledge, as SVG.

        Returns:
          Their paths.
        """
        from fedjax_drag.experiment.arena import figures

        return figures.write(self, Path(folder))

    def __repr__(self) -> str:
        leading = [f"{label} {one.worst}" for label, one in self.scores().items() if one.rank == 1]
        sizes = f"{len(self.rows)} entries, {len(self.tasks)} tasks, {len(self.opponents) - 1} attacks"
        return f"Standing({self.name}: {sizes}, best worst case in %: {', '.join(leading) or 'none'})"

    def _repr_html_(self) -> str:
        return tables.notebook_page(self)


def run(arena: Arena, trials: Trials, given: Standing | None = None) -> Standing:
    """Plays all entries that have no row yet, and writes the standing after each.

    Args:
      arena: the protocol.
      trials: how its runs are executed; with the folder of the standing, if it is to be kept.
      given: rows of entries that have been played elsewhere, by the same protocol.

    Raises:
      ValueError: the configuration of an entry is not valid, or the folder or ``given`` is that of another protocol.
      KeyboardInterrupt: stopped by Ctrl-C; the same call goes on.
    """
    standing = begin(arena, trials, given)
    decided: set[str] = set()
    sweeps = 2 * len(arena.opponents)  # of an entry: the tuning and the test against each opponent
    with unless_quiet(f"arena {arena.name}", sweeps * len(arena.entries), 0, trials.quiet, "sweep") as bar:
        trials = trials._replace(ended=bar.advance)
        for number, entry in enumerate(arena.entries, start=1):
            row = standing.rows.get(entry.label)
            played = row is not None and row.key == folder_of(arena, entry)
            if row is None or not played:
                row = _play(arena, entry, trials)
            elif row.passes is None:  # of a version that did not count them
                row = dataclasses.replace(row, passes=_demands(arena, entry, trials)[1])
            bar.update(number * sweeps, before=played)
            decided.add(entry.label)
            if row != standing.rows.get(entry.label):
                standing.rows[entry.label] = row
                if trials.folder is not None:
                    _write(standing, arena, trials.folder, decided)
    if trials.folder is not None:
        standing.page(trials.folder / PAGE)
    return standing


def _write(standing: Standing, arena: Arena, folder: Path, decided: Container[str]) -> None:
    """Writes the standing; rows that are not ``decided`` are those that other processes have written meanwhile."""
    with waited_for(folder):
        others = _rows_in(folder, arena, standing)
        standing.rows.update({label: row for label, row in others.items() if label not in decided})
        standing.write(folder)


def _rows_in(folder: Path, arena: Arena, like: Standing) -> dict[str, Row]:
    """The rows of the standing in a folder that were played by this protocol; none if there is no standing.

    Raises:
      ValueError: its tasks, attacks, seeds, name or version are others.
    """
    if not (folder / FILE).is_file():
        return {}
    old = read(folder)
    if dataclasses.replace(old, rows={}, protocol=None) != dataclasses.replace(like, rows={}, protocol=None):
        raise ValueError(f"out={str(folder)!r}: holds a standing of another protocol; choose another folder")
    same = None in (old.protocol, like.protocol) or _runs_of(old) == _runs_of(like)
    return {label: row for label, row in old.rows.items() if (same if row.is_own else _is_of(row, arena))}


def _is_of(row: Row, arena: Arena) -> bool:
    """Whether a row, not of a user's own parts, was played by a protocol."""
    return row.key == folder_of(arena, Entry(row.label, row.method, row.settings))


def _runs_of(standing: Standing) -> dict[str, Any]:
    """What of a protocol the runs depend on, which has to do for rows whose key cannot be computed from the file."""
    return {key: value for key, value in (standing.protocol or {}).items() if key not in ("name", "most_settings")}


def begin(arena: Arena, trials: Trials, given: Standing | None = None) -> Standing:
    """The standing in the folder and the rows that are given; nothing is computed.

    Raises:
      ValueError: the configuration of an entry is not valid, or the folder or ``given`` is that of another protocol.
    """
    if trials.folder is not None:
        refuse_links(trials.folder, *trials.folder.glob("*/"), *trials.folder.glob("*/*/"))
    labels, *_ = [trials.check(arena, entry).labels for entry in arena.entries]
    values = itertools.product(*(labels[axis] for axis in arena.tasks))
    tasks = [describe(dict(zip(arena.tasks, task, strict=True))) or arena.name for task in values]
    opponents = [opponent.label for opponent in arena.opponents]
    new = Standing(arena.name, arena.version, tasks, opponents, list(arena.seeds), {}, arena.protocol())
    if given is not None:
        _check_protocol(given, arena, new)
        new.rows.update(given.rows)
    if trials.folder is not None:
        new.rows.update(_rows_in(trials.folder, arena, new))
    return new


def _check_protocol(given: Standing, arena: Arena, wanted: Standing) -> None:
    """Refuses rows that were not played by this protocol."""
    differ = next((key for key in ("tasks", "opponents", "seeds") if getattr(given, key) != getattr(wanted, key)), None)
    rows = [row for row in given.rows.values() if not row.is_own]
    if differ is None and not all(_is_of(row, arena) for row in rows):
        differ = "base, attacks, tuning seeds or version"
    if differ is not None:
        raise ValueError(
            f"standing={given.name!r}: was played by another protocol than {arena.name!r}; must have the same {differ}"
        )


def read(source: str | Path) -> Standing:
    """A standing from :data:`FILE`, from the folder that has one, or one of those that come with the package.

    Args:
      source: path of the file or the folder, or the name of one of :data:`SHIPPED`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not what :meth:`Standing.write` has written.
    """
    path = Path(source) / FILE if Path(source).is_dir() else Path(source)
    if not path.is_file() and (SHIPPED / f"{source}.json").is_file():
        path = SHIPPED / f"{source}.json"
    if not path.is_file():
        names = [f"{place.stem!r}" for place in sorted(SHIPPED.glob("*.json"))]
        known = f", and the package has {', '.join(names)}" if names else ""
        raise FileNotFoundError(f"{str(path)!r}: no such file; 'fedjax-drag arena run' writes it{known}")
    try:
        return Standing(**fields_of(read_json(path)))
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: is not a standing of an arena: {error}") from None


def arena_of(standing: Standing) -> Arena:
    """The arena in which a standing was played, with those of its entries that files can hold.

    Raises:
      ValueError: the standing is of a version that did not keep the protocol.
    """
    if standing.protocol is None:
        raise ValueError(f"standing={standing.name!r}: does not hold its protocol; give the arena's configuration")
    rows = [row for row in standing.rows.values() if not row.is_own]
    entries = {row.label: {**row.method, "settings": row.settings} for row in rows}
    return load_arena(standing.protocol | {"entries": entries})


def _play(arena: Arena, entry: Entry, trials: Trials) -> Row:
    """Plays an entry, or reads what it has played."""
    started = time.monotonic()
    outcome = trials.play(arena, entry)
    seconds = trials.seconds(arena, entry) or time.monotonic() - started
    needs, passes = _demands(arena, entry, trials)
    return Row(
        entry.label,
        as_text(entry.method),
        as_text(entry.settings),
        needs,
        _choices(arena, entry, outcome),
        outcome.accuracy.tolist(),
        list(outcome.failures),
        seconds,
        folder_of(arena, entry),
        passes,
        datetime.date.today().isoformat(),
        __version__,
        list(outcome.doubts),
    )


def _demands(arena: Arena, entry: Entry, trials: Trials) -> tuple[list[str], float | None]:
    """What it must know, and its passes over the deltas."""
    config = trials.config(arena, entry)
    num_clients = Federations().split(config).num_clients
    return requirements.needs(config, num_clients), requirements.passes(config, num_clients)


def _choices(arena: Arena, entry: Entry, outcome: EntryOutcome) -> list[dict[str, Any]]:
    strengths: Mapping[str, Sequence[str]] = {one.label: list(one.strengths) for one in arena.opponents}
    return [
        {
            "task": dict(zip(arena.tasks, task, strict=True)),
            "setting": dict(zip(entry.settings, choice.setting, strict=True)),
            "strengths": {
                label: dict(zip(strengths[label], values, strict=True)) for label, values in choice.strengths.items()
            },
            "validation_accuracy": choice.worst_case,
        }
        for task, choice in outcome.choices.items()
    ]
