"""Arenas from Python: all entries of one, or a defence of one's own beside those that have been played."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedjax_drag.experiment.arena import standing as standings
from fedjax_drag.experiment.arena.protocol import Arena, Entry, entry_of, load_arena
from fedjax_drag.experiment.arena.standing import Standing
from fedjax_drag.experiment.arena.trials import Trials
from fedjax_drag.experiment.config.config import check_name
from fedjax_drag.experiment.config.own import short, with_own_names
from fedjax_drag.experiment.run import results

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
    return standings.run(wanted, _trials(out, quiet, allow_code), given)


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
    checked, given = _resolved(arena, standing)
    own = _entry(builder, grid or {}, label, part, checked.most_settings)
    others = [entry.label for entry in checked.entries]
    others += [row.label for row in given.rows.values() if not row.is_own] if given else []
    if own.label in others:
        raise ValueError(f"label={own.label!r}: is that of another entry; must be a new one")
    played = () if given else checked.entries
    wanted = dataclasses.replace(checked, entries=(*played, own))
    return standings.run(wanted, _trials(out, quiet, allow_code), given)


def _resolved(arena: Source, standing: str | Path | Standing | None) -> tuple[Arena, Standing | None]:
    """The protocol, and rows that are not to be played again."""
    given = standings.read(standing) if isinstance(standing, str | Path) else standing
    if isinstance(arena, str | Path) and Path(arena).suffix not in (".yaml", ".yml"):
        arena = standings.read(arena)
    if isinstance(arena, Standing):
        return standings.arena_of(arena), arena if given is None else given
    return arena if isinstance(arena, Arena) else load_arena(arena), given


def _entry(builder: Any, grid: Mapping[str, Sequence[Any]], label: str | None, part: str, most: int) -> Entry:
    named = {"name": builder} if label is None or isinstance(builder, str) else {"name": builder, "label": label}
    named = with_own_names(named, part)
    label = label or short(named["name"])
    check_name("label", label)
    return entry_of(label, {part: named, "settings": {f"{part}.{key}": values for key, values in grid.items()}}, most)


def _trials(out: str | Path | None, quiet: bool | None, allow_code: bool) -> Trials:
    return Trials(results.folder_of(out), quiet, allow_code)
