"""Sweeps: a run for every combination of values, and their table, summary and heat map."""

import contextlib
import dataclasses
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from tqdm import tqdm

from fedjax_drag import checks, stopping
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import Experiment
from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.run import folders, planning, run
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.lock import locked
from fedjax_drag.experiment.run.metric_kinds import is_counted
from fedjax_drag.experiment.sweep import choice, latex, outcome_table, sweep_folder
from fedjax_drag.experiment.sweep.choice import Best
from fedjax_drag.experiment.sweep.grid import Grid, Point, load_grid, of_cell
from fedjax_drag.experiment.sweep.one_program import Member, run_as_one_program
from fedjax_drag.experiment.sweep.outcome_table import Cell, Table
from fedjax_drag.experiment.sweep.outcomes import failed, finished, interrupted, outcome, reason
from fedjax_drag.experiment.sweep.sweep_folder import CELLS, CONFIG
from fedjax_drag.files import write_text
from fedjax_drag.simulation import frames
from fedjax_drag.simulation.cells import likeness
from fedjax_drag.simulation.model import initial_params
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.program.sampling import probabilities
from fedjax_drag.simulation.progress import Progress

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingImports]

CLEARED_AFTER = 10
"""Programs after which compiled ones are freed: some 30 MB each, and what all share is then traced anew."""


class Sweep(NamedTuple):
    """A finished sweep.

    Attributes:
      cells: one :class:`~fedjax_drag.experiment.sweep.outcome_table.Cell` for each combination, the last axis changing
        fastest.
      table: columns by name, a row for each cell and evaluation: the axes, ``status``, ``message`` and the figures of
        the histories.
      worst_case: by setting (the value of the axis that is neither the seed nor a condition, such as attack, partition
        and share of malicious clients; of several axes ``"krum, step_size=0.1"``), the worst over the conditions of
        the final accuracy, its mean over the seeds; the best first, NaN where a combination has none. Of the validation
        accuracy where the data of all cells have a validation split, else of the test accuracy; of another metric where
        the configuration says so.
      best: the setting with the best of these, and its test accuracy, a
        :class:`~fedjax_drag.experiment.sweep.choice.Best`; None if there is but one setting, or none has come to a good
        end.
    """

    cells: tuple[Cell, ...]
    table: Table
    worst_case: dict[str, float]
    best: Best | None = None

    def __repr__(self) -> str:
        statuses = Counter(cell.status for cell in self.cells)
        cells = ", ".join(f"{number} {status}" for status, number in statuses.items())
        return f"Sweep(cells: {cells})" if self.best is None else f"Sweep(cells: {cells}; best: {self.best})"

    def to_pandas(self, histories: bool = False) -> "pandas.DataFrame":
        """The results as a table of pandas, with a column for each axis.

        Args:
          histories: a row for each cell and evaluation, as ``table`` has them; default one for each cell, with its
            figures at the end, costs such as ``bytes_up`` added up over the rounds, and as ``best_round`` and
            ``best_<metric>`` those of the evaluation at which the metric by which cells are compared was best.

        Raises:
          ImportError: pandas is not installed.
        """
        whole = frames.frame(self.table)
        if histories:
            return whole
        by, axes = outcome_table.criterion_of(self.cells), list(self.cells[0].values)
        cells = whole.groupby(axes, sort=False, dropna=False)
        final = cells.tail(1).reset_index(drop=True)
        counted = [name for name in whole if name not in axes and is_counted(name.removeprefix("history."))]
        final[counted] = cells[counted].sum(min_count=1).to_numpy()
        values = whole[by.column].to_numpy()
        places = [rows[by.last_best(values[rows])] for rows in cells.indices.values()]
        best = whole.loc[places, ["round", by.column]].reset_index(drop=True).add_prefix("best_")
        return final.join(best)

    def to_latex(
        self,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        metric: str | None = None,
        ties: bool = False,
    ) -> str:
        """The final figures as a LaTeX table; the document needs the package booktabs.

        An entry is the mean over the seeds and half its 95 % interval (Student's t), in percent where the metric is a
        share; costs such as ``bytes_up`` are added up over the rounds. The best of a column is bold, the highest of a
        metric of one's own that cells are not compared by. An asterisk says that cells have failed, diverged or were
        interrupted, a dash that none has the metric.

        Args:
          rows: axes whose values stand in rows; default those that are no conditions.
          columns: axes whose values stand in columns; default the others.
          metric: default that by which cells are compared.
          ties: whether to underline what differs from the best of its column by no more than the best's interval.

        Raises:
          ValueError: an axis or the metric is not there, or no cell has come to an end.
        """
        return latex.latex(self.cells, rows, columns, metric, ties)


@dataclasses.dataclass(frozen=True)
class CheckedSweep:
    """A checked sweep, none of whose cells has started.

    Attributes:
      grid: its cells.
      folder: where the results go, or None; cells that are there are skipped or continued.
      federations: data that the cells share.
      known: by place in the grid, cells that are not to run; what is finished in the folder goes before.
    """

    grid: Grid
    folder: Path | None
    federations: planning.Federations
    known: Mapping[int, Cell] = dataclasses.field(default_factory=dict)


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
        :func:`~fedjax_drag.experiment.run.run.run`; cells that differ in numbers of a class of one's own
        (:data:`~fedjax_drag.types.Scalar`) share a program, while functions that a builder makes are compiled for each.
      overrides: ``key=value`` strings such as ``"rounds=50"`` or ``"axes.seed=[0,1]"``.
      out: results folder; None writes nothing. Every cell has a run's folder in ``out/cells``.
      resume: skip the cells that have finished in ``out`` and continue those that have not; where there is nothing
        yet, start.
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
    with plan(load_grid(config, overrides, Code(allow_code)), out, resume, overwrite) as planned:
        return execute(planned, quiet, cells_per_program)


@contextlib.contextmanager
def plan(
    grid: Grid, out: str | Path | None = None, resume: bool = False, overwrite: bool = False
) -> Iterator[CheckedSweep]:
    """Checks the data, files and folder of a sweep; locks ``out`` in a block, and clears it to overwrite it.

    Args and exceptions are those of :func:`sweep`.
    """
    folder = folders.folder_of(out, resume, overwrite)
    with locked(folder, partial(sweep_folder.check_folder, resume=resume, overwrite=overwrite)):
        federations = planning.Federations()
        for point in grid.points:
            if folder is not None and resume:
                folders.check_same(folder / CELLS / point.folder, point.config)
            federations.dataset(point.config)  # missing data stop the sweep: they are no failure of a single cell
        _check_files(grid)
        if folder is not None and overwrite:
            folders.check_start(folder, (point.config for point in grid.points))
            sweep_folder.clear(folder)
        yield CheckedSweep(grid, folder, federations)


def _check_files(grid: Grid) -> None:
    """Refuses cells that name a file that is not there, or cannot be read."""
    named = {(point.config.initial_params, str(point.config.availability)): point for point in grid.points}
    for point in named.values():
        of_cell(point.label, point.config, grid.base, _check_files_of)


def _check_files_of(config: Config) -> None:
    if config.initial_params is not None:
        initial_params.stored(config.initial_params)
    if isinstance(config.availability, str):
        probabilities(config.availability)


def begin(planned: CheckedSweep) -> None:
    """Writes the configuration of a planned sweep into its folder, if it has one."""
    if planned.folder is not None:
        write_text(planned.folder / CONFIG, written(planned.grid.to_mapping()))


def execute(planned: CheckedSweep, quiet: bool | None = None, cells_per_program: int | None = None) -> Sweep:
    """Runs the cells of a planned sweep.

    Args:
      planned: from :func:`plan`.
      quiet: as for :func:`sweep`.
      cells_per_program: as for :func:`sweep`.
    """
    begin(planned)
    grid, folder = planned.grid, planned.folder
    cells: dict[int, Cell] = {}
    with Progress(grid.base.name, len(grid.points), unit="cell", quiet=quiet) as bar:
        try:
            for number, ended in enumerate(outcomes(planned, quiet, cells_per_program)):
                if ended:
                    cells |= ended
                    if folder is not None:
                        sweep_folder.record(folder, grid, _in_order(cells))
                    bar.update(len(cells), before=number == 0)
        except KeyboardInterrupt:
            if folder is not None:
                for place, point in enumerate(grid.points):
                    stopped = None if place in cells else interrupted(folder / CELLS / point.folder, point)
                    cells |= {} if stopped is None else {place: stopped}
                sweep_folder.record(folder, grid, _in_order(cells))
            raise
    ended = _in_order(cells)
    if folder is not None:
        sweep_folder.draw(folder, grid, ended)
    worst = outcome_table.worst_cases(grid, ended)
    return Sweep(tuple(ended), outcome_table.table(grid, ended), worst, choice.best(grid, ended))


def _in_order(cells: Mapping[int, Cell]) -> list[Cell]:
    return [cells[place] for place in sorted(cells)]


def outcomes(planned: CheckedSweep, quiet: bool | None, most: int | None) -> Iterator[dict[int, Cell]]:
    """The outcomes of cells, by place: first of those, if any, that are finished or cannot start, then by program."""
    known, groups = grouped_cells(planned, most)
    yield known
    for number, members in enumerate(groups, start=1):
        yield from _run(planned, members, quiet, most)
        if number % CLEARED_AFTER == 0:
            jax.clear_caches()


def grouped_cells(planned: CheckedSweep, most: int | None) -> tuple[dict[int, Cell], list[list[Member]]]:
    """The outcomes, by place, of cells that are finished or cannot start, and the others by program."""
    groups: dict[Hashable, list[Member]] = {}
    known = dict(planned.known)
    for place, point in enumerate(planned.grid.points):
        stopping.check()
        folder = planned.folder and planned.folder / CELLS / point.folder
        ended = None if folder is None else finished(folder, point)
        if ended is not None:
            known[place] = ended
        if place in known:
            continue
        try:
            member = _member(planned, place, point, folder)
        except Exception as error:
            known[place] = failed(point, error)
        else:
            groups.setdefault(place if most == 1 else member.likeness, []).append(member)
    return known, [*groups.values()]


def _member(planned: CheckedSweep, place: int, point: Point, folder: Path | None) -> Member:
    done = 0 if folder is None else max(Checkpoints(folder).rounds(), default=0)
    settings = build.settings(point.config, planned.federations.split(point.config))
    federate(settings)  # raises here, before the cell could stop others in its program
    return Member(place, point, folder, settings, (done, build.traced(likeness, settings)))


def _run(
    planned: CheckedSweep, members: Sequence[Member], quiet: bool | None, most: int | None
) -> Iterator[dict[int, Cell]]:
    """Runs the cells of one group as one program; those that it cannot run, one by one."""
    left = {member.place: member for member in members}
    if len(members) > 1 and not members[0].settings.is_run_alone:
        try:
            for ended in run_as_one_program(members, most, quiet):
                yield {place: outcome(left.pop(place).point, one) for place, one in ended.items()}
        except Exception as error:  # each cell reports its own error when it runs alone
            tqdm.write(f"{len(left)} cells run one by one: {reason(error)}", file=sys.stderr)
    for place, (_, point, folder, *_) in left.items():
        try:
            cell = Experiment(point.config, {point.label: point.config})
            with run.plan(cell, out=folder, resume=folder is not None, federations=planned.federations) as one:
                (result,) = run.execute(one, quiet).values()
            yield {place: outcome(point, result)}
        except Exception as error:
            yield {place: failed(point, error)}
