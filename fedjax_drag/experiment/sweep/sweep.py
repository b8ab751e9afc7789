"""Sweeps: a run for every combination of values, and their table, summary and heat map."""

import dataclasses
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from fedjax_drag import checks
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import Experiment
from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.run import metrics_file, planning, results, run
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.lock import HoldsLock, locked, released_on_error
from fedjax_drag.experiment.run.metrics_file import METRICS, History
from fedjax_drag.experiment.run.saver import import_ahead
from fedjax_drag.experiment.sweep import choice, grouping, outcome_table
from fedjax_drag.experiment.sweep.choice import Best
from fedjax_drag.experiment.sweep.grid import Grid, Point, load_grid
from fedjax_drag.experiment.sweep.grouping import Group
from fedjax_drag.experiment.sweep.one_program import Member, run_as_one_program
from fedjax_drag.experiment.sweep.outcome_table import Cell, Table
from fedjax_drag.experiment.sweep.summary_page import summary
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.result import Result, with_client_seconds

CONFIG, TABLE, PARQUET, SUMMARY = "sweep.yaml", "table.csv", "table.parquet", "summary.md"
HEATMAP, CELLS = "heatmap.png", "cells"
WRITTEN = (CONFIG, TABLE, PARQUET, SUMMARY, HEATMAP, CELLS)
"""Everything that a sweep writes into its folder."""

CLEARED_AFTER = 10
"""Programs after which compiled ones are freed: some 30 MB each, and what all share is then traced anew."""


class Sweep(NamedTuple):
    """A finished sweep.

    Attributes:
      cells: one :class:`~fedjax_drag.experiment.sweep.outcome_table.Cell` for each combination, the last axis changing
        fastest.
      table: columns by name, a row for each cell and evaluation: the axes, ``status``, ``message`` and the figures of
        the histories.
      worst_case: by value of the first axis that is an aggregator or an algorithm (else the first axis), the minimum
        over the combinations of the others of the final accuracy, its mean over the seeds; the best first, NaN where a
        combination has none. Of the validation accuracy where the data of all cells have a validation split, else of
        the test accuracy.
      best: the setting with the highest final accuracy of the same kind, and its test accuracy, a
        :class:`~fedjax_drag.experiment.sweep.choice.Best`; None if there is but one setting, or none has come to a good
        end.
    """

    cells: tuple[Cell, ...]
    table: Table
    worst_case: dict[str, float]
    best: Best | None = None


@dataclasses.dataclass(frozen=True)
class Plan(HoldsLock):
    """A checked sweep, none of whose cells has started.

    Attributes:
      grid: its cells.
      folder: where the results go, or None.
      resume: whether cells in the folder are skipped or continued.
      federations: data that the cells share.
    """

    grid: Grid
    folder: Path | None
    resume: bool
    federations: planning.Federations


def sweep(
    config: str | Path | Mapping[str, Any] | Grid,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool | None = None,
    cells_per_program: int | None = None,
    allow_code: bool = False,
) -> Sweep:
    """Runs every combination of the values that a configuration gives under ``axes``.

    Cells that differ in numbers (of rules, attacks, clients; the step size), in the seed, in the way the data are split
    and in the share of malicious clients run as one program, compiled once and divided among all local devices; what is
    left, such as another rule, model or attack, is a loop over programs. The results are those of separate runs to the
    accuracy of float32. A cell that cannot be run, or whose model diverges, is recorded as such and does not stop the
    others.

    Args:
      config: path of a YAML file, or a mapping of the keys of a run's configuration and of ``axes``: a mapping from a
        key (dotted, to reach into a component) to the list of its values. Python objects may stand in it as in that of
        :func:`~fedjax_drag.experiment.run.run.run`; numbers of a builder of one's own share a program where they are
        floating.
      overrides: ``key=value`` strings such as ``"rounds=50"`` or ``"axes.seed=[0,1]"``.
      out: results folder; None writes nothing. Every cell has a run's folder in ``out/cells``.
      resume: skip the cells that have finished in ``out`` and continue one that has not.
      overwrite: replace the sweep in ``out``.
      quiet: True for no progress, None for bars in a terminal or a notebook, else a line every half minute.
      cells_per_program: most cells in one program; 1 for separate runs; default as many as fit the memory.
      allow_code: whether to run code that ``config`` refers to; as for a run.

    Returns:
      A :class:`Sweep`.

    Raises:
      ValueError: the configuration, an axis or the folder is not valid; raised before anything is computed or written.
      FileNotFoundError: the configuration or the data are not there.
      KeyboardInterrupt: stopped by Ctrl-C, after what was computed has been saved in ``out``.

    Examples:
      >>> config = {"data": "digits", "partition": {"name": "dirichlet", "num_clients": 40, "beta": 0.1}}
      >>> result = sweep(config | {"axes": {"aggregator": ["fedavg", "drag"], "seed": [0, 1]}})  # doctest: +SKIP
      >>> result.worst_case["drag"]  # doctest: +SKIP
      0.91
    """
    if cells_per_program is not None:
        checks.count("cells_per_program", cells_per_program, 1)
    with plan(config, overrides, out, resume, overwrite, allow_code) as planned:
        return execute(planned, quiet, cells_per_program)


def plan(
    config: str | Path | Mapping[str, Any] | Grid,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    allow_code: bool = False,
) -> Plan:
    """Checks all cells of a sweep; locks ``out``, and clears it to overwrite it.

    Args and exceptions are those of :func:`sweep`.
    """
    grid = load_grid(config, overrides, Code(allow_code))
    folder = None if out is None else Path(out)
    if folder is None and (resume or overwrite):
        raise ValueError("out=None: resume and overwrite need the results folder")
    lock = None if folder is None else locked(folder, partial(_check_folder, resume=resume, overwrite=overwrite))
    with released_on_error(lock):
        if folder is not None and resume:
            for point in grid.points:
                if (folder / CELLS / point.folder / results.CONFIG).is_file():
                    results.check_same(folder / CELLS / point.folder, point.config)
        federations = planning.Federations()
        for point in grid.points:
            federations.dataset(point.config)  # missing data stop the sweep: they are no failure of a single cell
        if folder is not None and overwrite:
            _clear(folder)
    return Plan(grid, folder, resume, federations, lock=lock)


def begin(planned: Plan) -> None:
    """Makes the folder of a planned sweep, if it is to have one, with its configuration."""
    if planned.folder is not None:
        planned.folder.mkdir(parents=True, exist_ok=True)
        text = written(planned.grid.to_mapping())
        results.write_text(planned.folder / CONFIG, text)


def execute(
    planned: Plan,
    quiet: bool | None = None,
    cells_per_program: int | None = None,
    known: Mapping[int, Cell] = types.MappingProxyType({}),
) -> Sweep:
    """Runs the cells of a planned sweep.

    Args:
      planned: from :func:`plan`.
      quiet: as for :func:`sweep`.
      cells_per_program: as for :func:`sweep`.
      known: by place in the grid, cells that are not to run; what is finished in the folder goes before.
    """
    begin(planned)
    grid = planned.grid
    if planned.folder is not None:
        import_ahead("pyarrow.parquet")  # for the table, while XLA compiles
    cells: dict[int, Cell] = {}
    with tqdm(total=len(grid.points), desc="sweep", unit=" cells", disable=quiet, dynamic_ncols=True) as bar:
        try:
            for programs, ended in enumerate(_outcomes(planned, quiet, cells_per_program, known), start=1):
                cells |= ended
                _record(planned, _in_order(cells))
                bar.update(len(ended))
                if programs % CLEARED_AFTER == 0:
                    jax.clear_caches()
        except KeyboardInterrupt:
            cells |= _interrupted(planned, cells)
            raise
        finally:
            _record(planned, _in_order(cells))
            _draw(planned, _in_order(cells))
    ended = _in_order(cells)
    matrix = outcome_table.matrix(grid, ended)
    worst = dict(zip(matrix.rows, matrix.worst.tolist(), strict=True))
    return Sweep(tuple(ended), outcome_table.table(grid, ended), worst, choice.best(grid, ended))


def _in_order(cells: Mapping[int, Cell]) -> list[Cell]:
    return [cells[place] for place in sorted(cells)]


def _outcomes(
    planned: Plan, quiet: bool | None, most: int | None, given: Mapping[int, Cell]
) -> Iterator[dict[int, Cell]]:
    """The outcomes of cells, by place: first of those that are finished or cannot start, then of each program."""
    members: list[Member] = []
    known = dict(given)
    for place, point in enumerate(planned.grid.points):
        folder = planned.folder and planned.folder / CELLS / point.folder
        ended = finished(folder, point) if folder is not None and planned.resume else None
        if ended is not None:
            known[place] = ended
        if place in known:
            continue
        try:
            members.append(_member(planned, place, point, folder))
        except Exception as error:
            known[place] = _failed(point, error)
    if known:
        yield known
    for group in _groups(members, most):
        yield from _run(planned, [members[i] for i in group.places], group.numbers, quiet, most)


def _member(planned: Plan, place: int, point: Point, folder: Path | None) -> Member:
    begun = folder is not None and (folder / results.CONFIG).is_file()
    walk = results.read_walk(folder) if folder and begun else None
    settings = build.settings(point.config, planned.federations.split(point.config), walk)
    federate(settings)  # raises here, before the cell could stop others in its program
    return Member(place, point, folder, settings, begun)


def _groups(members: Sequence[Member], most: int | None) -> list[Group]:
    """Cells grouped by program; each by itself where that is asked for."""
    if most == 1:
        return [Group([place], [{}]) for place in range(len(members))]
    starts = [_rounds_done(member.folder) if member.resume else 0 for member in members]
    feds = [member.settings.data for member in members]
    return grouping.group([member.point.config for member in members], feds, starts)


def _rounds_done(folder: Path | None) -> int:
    if folder is None or not (folder / results.CHECKPOINTS).is_dir():
        return 0
    checkpoints = Checkpoints(folder)
    try:
        return checkpoints.latest() or 0
    finally:
        checkpoints.close()


def _run(
    planned: Plan,
    members: Sequence[Member],
    numbers: Sequence[Mapping[str, float]],
    quiet: bool | None,
    most: int | None,
) -> Iterator[dict[int, Cell]]:
    """Runs the cells of one group as one program; those that it cannot run, one by one."""
    left = {member.place: member for member in members}
    if len(members) > 1 and members[0].settings.client_state == DEVICE:
        try:
            for ended in run_as_one_program(members, numbers, most, quiet):
                yield {place: _outcome(left.pop(place).point, outcome) for place, outcome in ended.items()}
        except Exception as error:  # each cell reports its own error when it runs alone
            tqdm.write(f"{len(left)} cells run one by one: {_reason(error)}", file=sys.stderr)
    for place, member in left.items():
        yield {place: _alone(planned, member, quiet)}


def _alone(planned: Plan, member: Member, quiet: bool | None) -> Cell:
    point, folder = member.point, member.folder
    begun = folder is not None and (folder / results.CONFIG).is_file()  # perhaps just now, in a program with others
    try:
        cell = Experiment(point.config, {point.label: point.config})
        with run.plan(cell, out=folder, resume=begun, federations=planned.federations) as one:
            (result,) = run.execute(one, quiet).values()
        return _judged(point, result.history, result.diverged_at)
    except Exception as error:
        return _failed(point, error)


def _outcome(point: Point, outcome: Result | Exception) -> Cell:
    if isinstance(outcome, Exception):
        return _failed(point, outcome)
    return _judged(point, outcome.history, outcome.diverged_at)


def _failed(point: Point, error: Exception) -> Cell:
    return Cell(point.values, "failed", _reason(error), {})


def _reason(error: Exception) -> str:
    reason = next(iter(str(error).strip().splitlines()), "")
    return reason if isinstance(error, ValueError) else f"{type(error).__name__}: {reason}"


def finished(folder: Path, point: Point) -> Cell | None:
    """The result of a cell that is finished, else None."""
    try:
        figures = results.read_summary(folder)
        content = (folder / METRICS).read_bytes()
    except (OSError, ValueError):
        return None
    history, _, damage = metrics_file.parse(content)
    checksum = zlib.crc32(content)
    damaged = damage or figures.get("metrics_crc32", checksum) != checksum  # older versions wrote none
    if damaged or not history or figures["interrupted"]:
        return None
    diverged_at = figures.get("diverged_at")
    stopped = diverged_at is not None and point.config.stop_on_divergence
    if history["round"][-1] < point.config.rounds and not stopped:
        return None
    history = with_client_seconds(history, figures.get("seconds_per_local_step"))
    return _judged(point, history, diverged_at)


def _judged(point: Point, history: History, diverged_at: int | None) -> Cell:
    if diverged_at is not None:
        return Cell(point.values, "diverged", f"parameters are not finite after round {diverged_at}", history)
    bad = ~np.isfinite(np.asarray(history["test_loss"], np.float64))
    if not bad[-1]:
        return Cell(point.values, "done", "", history)
    first = int(history["round"][len(bad) - int(np.argmin(bad[::-1])) if not bad.all() else 0])
    return Cell(point.values, "diverged", f"test_loss is not finite from round {first} on", history)


def _interrupted(planned: Plan, cells: Mapping[int, Cell]) -> dict[int, Cell]:
    """Cells that were stopped on their way and have left evaluations in the folder."""
    stopped: dict[int, Cell] = {}
    for place, point in enumerate(planned.grid.points):
        if planned.folder is not None and place not in cells:
            history = metrics_file.read(planned.folder / CELLS / point.folder / METRICS).history
            if history:
                stopped[place] = Cell(point.values, "interrupted", "stopped before its end", history)
    return stopped


def _record(planned: Plan, cells: list[Cell]) -> None:
    if planned.folder is not None:
        table = outcome_table.table(planned.grid, cells)
        results.write_text(planned.folder / TABLE, outcome_table.to_csv(table))
        outcome_table.write_parquet(planned.folder / PARQUET, table)
        results.write_text(planned.folder / SUMMARY, summary(planned.grid, cells))


def _draw(planned: Plan, cells: list[Cell]) -> None:
    if planned.folder is None or len([axis for axis in planned.grid.axes if axis != "seed"]) < 2:
        return
    from fedjax_drag.experiment.sweep import heatmap  # imported here: matplotlib is slow

    figure = heatmap.draw(outcome_table.matrix(planned.grid, cells), planned.grid.base.name)
    heatmap.save(figure, planned.folder / HEATMAP)


def _check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder in which a sweep may not write; changes nothing."""
    where = f"out={str(folder)!r}"
    if resume and overwrite:
        raise ValueError("resume and overwrite: only one of them can be asked for")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{where}: must be a folder, and this is a file")
    holds_sweep = (folder / CONFIG).is_file() or (resume and (folder / CELLS).is_dir())
    if resume and not holds_sweep:
        raise ValueError(f"{where}: holds no sweep to resume")
    if holds_sweep and not (resume or overwrite):
        raise ValueError(f"{where}: already holds a sweep; {results.REMEDY}")
    if not holds_sweep and folder.is_dir() and any((folder / name).exists() for name in (*WRITTEN, *results.WRITTEN)):
        raise ValueError(f"{where}: holds something else than a sweep; choose another folder")


def _clear(folder: Path) -> None:
    """Removes what a sweep wrote in ``folder``, and nothing else."""
    results.clear(folder / CELLS)
    if (folder / CELLS).is_dir() and not any((folder / CELLS).iterdir()):
        (folder / CELLS).rmdir()
    for name in (CONFIG, TABLE, PARQUET, SUMMARY, HEATMAP, results.REPORT):
        (folder / name).unlink(missing_ok=True)
