"""Plays arenas: all entries of one, or a defence of one's own beside those that have been played."""

import dataclasses
import datetime
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedjax_drag import checks
from fedjax_drag.experiment.arena import requirements, tables
from fedjax_drag.experiment.arena.own_code import code_of
from fedjax_drag.experiment.arena.protocol import METHOD_KEYS, Arena, Entry, entry_of, load_arena
from fedjax_drag.experiment.arena.standing import FILE, Row, Standing, read
from fedjax_drag.experiment.arena.trials import Trials, criterion_of, key_of
from fedjax_drag.experiment.config.config import check_name
from fedjax_drag.experiment.config.own import as_text, short, with_own_names
from fedjax_drag.experiment.plain import plain
from fedjax_drag.experiment.run import environment, folders, results
from fedjax_drag.experiment.run.lock import refuse_links, waited_for
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep.grid import describe
from fedjax_drag.files import write_text
from fedjax_drag.simulation.progress import Progress
from fedjax_drag.version import __version__

TABLE, PAGE = "arena.md", "arena.html"
"""What is written into an arena's folder, beside the standing and the folders of its entries."""

Source = str | Path | Mapping[str, Any] | Arena | Standing
"""An arena: its YAML file or a mapping of that file's keys; or a standing, which holds its protocol."""


def load(source: Source) -> Arena:
    """Reads what an arena compares.

    Args:
      source: path of a YAML file, a mapping of its keys, or a standing as for :func:`read`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: one line naming the key, its value and what is allowed.
    """
    return _resolved(source, None)[0]


def run(
    arena: Source,
    out: str | Path | None = None,
    *,
    entries: Iterable[str] = (),
    standing: str | Path | Standing | None = None,
    quiet: bool | None = None,
    allow_code: bool = False,
) -> Standing:
    """Plays the entries of an arena that have not been played.

    Args:
      arena: path of a YAML file, a mapping of its keys, what :func:`load` returns, or a standing to go on from.
      out: results folder, in which what has been played is found again; None writes nothing.
      entries: labels of those to play; default all.
      standing: rows that are not played again: a standing, its file or folder, or the name of one that comes with the
        package.
      quiet: True for no progress, None for bars in a terminal or a notebook, else a line every half minute.
      allow_code: whether to run code that the configuration refers to.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the configuration is not valid, or ``out`` or ``standing`` was played by another protocol.
      KeyboardInterrupt: stopped by Ctrl-C; the same call with the same ``out`` goes on.
    """
    checked, given = _resolved(arena, standing)
    wanted = checked.only(entries) if entries else checked
    return play(wanted, Trials(folders.folder_of(out), quiet, allow_code), given)


def enter(
    builder: Any,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    arena: Source,
    label: str | None = None,
    part: Literal["aggregator", "algorithm", "client"] = "aggregator",
    out: str | Path | None = None,
    standing: str | Path | Standing | None = None,
    quiet: bool | None = None,
    allow_code: bool = False,
) -> Standing:
    """Plays a defence of one's own in an arena: a row beside the others.

    Where ``arena`` is a standing, or one is given, nothing else is played. Otherwise the arena's own entries are, but
    those that ``out`` holds.

    Args:
      builder: makes the defence, such as ``lambda c=0.5: my_rule(c)``; numbers among its arguments are inputs of one
        program. Or the defence itself, if there is nothing to tune.
      grid: by argument the values among which it is tuned; at most as many settings as the arena allows.
      arena: path of a YAML file, a mapping of its keys, what :func:`load` returns, or a standing: an object, its file
        or folder, or the name of one that comes with the package.
      label: its name in tables; default the function's name.
      part: what it is: an aggregation rule, a two-sided method, or what clients run.
      out: results folder, in which what has been played is found again, unless the code has changed; None writes
        nothing.
      standing: rows that are not played again; default ``arena``, if that is one.
      quiet: as for :func:`run`.
      allow_code: as for :func:`run`.

    Returns:
      The standing with the new row, which a notebook shows marked.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the label is that of another entry, a setting is not valid, or ``out`` or ``standing`` was played by
        another protocol.
      KeyboardInterrupt: stopped by Ctrl-C; the same call with the same ``out`` goes on.

    Examples:
      >>> rule = lambda max_norm=1.0: fd.aggregators.norm_clipping(max_norm)
      >>> fd.arena.enter(rule, {"max_norm": [0.1, 1.0]}, arena="configs/arena/digits.yaml")  # doctest: +SKIP
    """
    wanted, given = entered(builder, grid, arena, label, part, standing)
    return play(wanted, Trials(folders.folder_of(out), quiet, allow_code), given)


def entered(
    builder: Any, grid: Mapping[str, Sequence[Any]] | None, arena: Source, label: str | None, part: str, standing: Any
) -> tuple[Arena, Standing | None]:
    """What :func:`enter` plays, from its arguments, and the rows that are not played again."""
    checks.one_of("part", part, METHOD_KEYS)
    checked, given = _resolved(arena, standing)
    named = {"name": builder} if label is None or isinstance(builder, str) else {"name": builder, "label": label}
    named = with_own_names(named, part)
    label = label or short(named["name"])
    check_name("label", label)
    settings = {f"{part}.{key}": values for key, values in (grid or {}).items()}
    own = entry_of(label, {part: named, "settings": settings}, checked.most_settings)
    played = () if given else checked.entries
    others = [row for row in given.rows.values() if not row.is_own] if given else []
    if label in [one.label for one in (*checked.entries, *others)]:
        raise ValueError(f"label={label!r}: is that of another entry; must be a new one")
    return dataclasses.replace(checked, entries=(*played, own)), given


def begin(arena: Arena, trials: Trials, given: Standing | None = None) -> Standing:
    """The standing in the folder and the rows that are given; nothing is computed.

    Raises:
      ValueError: the configuration of an entry is not valid, or the folder or ``given`` is that of another protocol.
    """
    if trials.folder is not None:
        refuse_links(trials.folder, *trials.folder.glob("*/"), *trials.folder.glob("*/*/"))
        if any((trials.folder / name).exists() for name in (*results.WRITTEN, results.SWEEP)):
            raise ValueError(f"out={str(trials.folder)!r}: holds a run or a sweep; choose another folder")
    grid, *_ = [trials.check(arena, entry) for entry in arena.entries]
    values = ({axis: point.values[axis] for axis in arena.tasks} for point in grid.points)
    tasks = list(dict.fromkeys(describe(task) or arena.name for task in values))
    metric = environment.facts_of(criterion_of(grid.points[0].config))
    opponents = [opponent.label for opponent in arena.opponents]
    new = Standing(arena.name, arena.version, tasks, opponents, list(arena.seeds), {}, arena.protocol(), metric)
    if given is not None:
        _check_protocol(given, arena, new)
        new.rows.update(given.rows)
    if trials.folder is not None:
        new.rows.update(_rows_in(trials.folder, arena, new))
    return new


def play(arena: Arena, trials: Trials, given: Standing | None = None) -> Standing:
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
    trials.check_backdoors(arena)
    sweeps = 2 * len((*arena.opponents, *arena.backdoors))  # of an entry: the tuning and the test against each
    with Progress(f"arena {arena.name}", sweeps * len(arena.entries), unit="sweep", quiet=trials.quiet) as bar:
        trials = trials._replace(ended=bar.advance)
        for number, entry in enumerate(arena.entries, start=1):
            row = standing.rows.get(entry.label)
            played = row is not None and row.key == key_of(arena, entry) and row.code in ("", code_of(entry.method))
            if not played:
                standing.rows[entry.label] = _play(arena, entry, trials)
                _write(standing, arena, trials.folder, entry.label)
            bar.update(number * sweeps, before=played)
    _write(standing, arena, trials.folder)
    if trials.folder is not None:
        from fedjax_drag.experiment.arena import page  # here: matplotlib is slow

        page.write(standing, trials.folder / PAGE)
    return standing


def _resolved(arena: Source, standing: str | Path | Standing | None) -> tuple[Arena, Standing | None]:
    """The protocol, and rows that are not to be played again."""
    given = read(standing) if isinstance(standing, str | Path) else standing
    if isinstance(arena, str | Path) and Path(arena).suffix not in (".yaml", ".yml"):
        arena = read(arena)
    if not isinstance(arena, Standing):
        return arena if isinstance(arena, Arena) else load_arena(arena), given
    if arena.protocol is None:
        raise ValueError(f"standing={arena.name!r}: does not hold its protocol; give the arena's configuration")
    rows = [row for row in arena.rows.values() if not row.is_own]  # of a user's own, files hold no part
    entries = {row.label: {**row.method, "settings": row.settings} for row in rows}
    return load_arena(arena.protocol | {"entries": entries}), arena if given is None else given


def _play(arena: Arena, entry: Entry, trials: Trials) -> Row:
    """Plays an entry, or reads what it has played."""
    started = time.monotonic()
    outcome = trials.play(arena, entry)
    seconds = trials.seconds(arena, entry) or time.monotonic() - started
    config = trials.config(arena, entry)
    num_clients = Federations().split(config).num_clients
    return Row(
        label=entry.label,
        method=as_text(entry.method),
        settings=as_text(entry.settings),
        needs=requirements.needs(config, num_clients),
        seconds=seconds,
        key=key_of(arena, entry),
        passes=requirements.passes(config, num_clients),
        played=datetime.date.today().isoformat(),
        package=__version__,
        code=code_of(entry.method),
        **plain(outcome._asdict()),
    )


def _write(standing: Standing, arena: Arena, folder: Path | None, played: str = "") -> None:
    """Writes the standing with the row that was ``played``; the others are those in the folder, if it has them."""
    if folder is None:
        return
    with waited_for(folder):
        others = _rows_in(folder, arena, standing)
        standing.rows.update({label: row for label, row in others.items() if label != played})
        standing.write(folder)
        write_text(folder / TABLE, tables.page(standing))


def _rows_in(folder: Path, arena: Arena, like: Standing) -> dict[str, Row]:
    """The rows of the standing in a folder that were played by this protocol; none if there is no standing."""
    if not (folder / FILE).is_file():
        return {}
    old = read(folder)
    if dataclasses.replace(old, rows={}, protocol=None) != dataclasses.replace(like, rows={}, protocol=None):
        raise ValueError(f"out={str(folder)!r}: holds a standing of another protocol; choose another folder")
    # The key of an own row cannot be computed from the file: it has to do that the protocols are the same.
    old_runs, runs = (
        {key: value for key, value in (one.protocol or {}).items() if key not in ("name", "most_settings")}
        for one in (old, like)
    )
    same = None in (old.protocol, like.protocol) or old_runs == runs
    return {label: row for label, row in old.rows.items() if (same if row.is_own else _is_of(row, arena))}


def _check_protocol(given: Standing, arena: Arena, wanted: Standing) -> None:
    """Refuses rows that were not played by this protocol."""
    keys = ("metric", "tasks", "opponents", "seeds")
    differ = [key for key in keys if getattr(given, key) != getattr(wanted, key)]
    if not all(row.is_own or _is_of(row, arena) for row in given.rows.values()):
        differ.append("base, attacks, tuning seeds or version")
    if differ:
        must = f"must have the same {differ[0]}"
        raise ValueError(f"standing={given.name!r}: was played by another protocol than {arena.name!r}; {must}")


def _is_of(row: Row, arena: Arena) -> bool:
    """Whether a row, not of a user's own parts, was played by a protocol."""
    return row.key == key_of(arena, Entry(row.label, row.method, row.settings))
