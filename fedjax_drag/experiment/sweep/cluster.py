"""A sweep as several jobs, of a SLURM cluster or on this machine, submitted with submitit.

Each job runs a share of the cells and writes their folders where a sweep in one process would; its logs lie in a folder
beside them. At the end the table, the summary and the heat map of the whole sweep are written.

A job may be killed, run out of memory or time, be preempted or lose its machine. What it has finished stays, and what
is left is submitted again: as it was if the job had come further since it was submitted, else as two jobs with half of
the cells each, so that a cell that kills its job ends up alone and the others go on. A cell that has twice killed a job
of its own, without an evaluation in between, has failed.
"""

import collections
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_drag import checks, stopping
from fedjax_drag.cores import one_device_per_core
from fedjax_drag.experiment.build.own_parts import modules_of_files
from fedjax_drag.experiment.config.yaml_text import parse
from fedjax_drag.experiment.run.metrics_file import METRICS
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep import sweep, sweep_folder
from fedjax_drag.experiment.sweep.grid import Grid, Point
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.experiment.sweep.outcomes import finished
from fedjax_drag.simulation.devices.compilation_cache import keep_compiled
from fedjax_drag.simulation.progress import Progress

LAUNCHERS = ("local", "slurm")

DEFAULTS = {"name": "fedjax-drag", "timeout_min": 24 * 60}
"""Defaults of a job: submitit's own time limit of a few minutes is too short."""

POLL_SECONDS = 1.0
"""Between two looks at the jobs."""

PATIENCE_SECONDS = 600.0
"""After which a job that was preempted, and that nobody has queued again, is taken for dead."""

MOST_DEATHS = 2
"""Jobs of its own that a cell may kill without an evaluation in between."""


@dataclasses.dataclass(frozen=True)
class JobShare:
    """The work of one job.

    Attributes:
      grid: the sweep with the cells of this job alone.
      folder: the results folder of the sweep.
      most: cells in one program; None for what fits.
    """

    grid: Grid
    folder: Path
    most: int | None = None

    def __call__(self) -> tuple[Cell, ...]:
        """Runs the cells; those that are finished are read."""
        one_device_per_core()
        keep_compiled()
        planned = sweep.CheckedSweep(self.grid, self.folder, Federations())
        cells = {at: cell for ended in sweep.outcomes(planned, True, self.most) for at, cell in ended.items()}
        return tuple(cells[place] for place in range(len(self.points)))

    @property
    def points(self) -> tuple[Point, ...]:
        """Its cells."""
        return self.grid.points

    def evaluated(self) -> int:
        """Bytes of what its cells have written of their evaluations, which grow with each."""
        files = [self._folder_of(point) / METRICS for point in self.points]
        return sum(path.stat().st_size for path in files if path.is_file())

    def left(self) -> list[Point]:
        """Its cells that are not finished."""
        return [point for point in self.points if finished(self._folder_of(point), point) is None]

    def _folder_of(self, point: Point) -> Path:
        return self.folder / sweep_folder.CELLS / point.folder

    def checkpoint(self) -> Any:
        """The job to submit again after it was stopped at its time limit, or preempted."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def executor(launcher: str, folder: Path, options: Iterable[str] = ()) -> Any:
    """What jobs are submitted to.

    Args:
      launcher: ``"slurm"``, or ``"local"`` for processes of this machine.
      folder: where the logs go.
      options: ``key=value`` strings for submitit, such as ``"timeout_min=60"`` or ``"slurm_partition=gpu"``.

    Raises:
      ValueError: submitit is not installed, there is no such cluster here, or an option is not known.
    """
    checks.one_of("launcher", launcher, LAUNCHERS)
    try:
        import submitit
    except ImportError:
        raise ValueError(f"launcher={launcher!r}: needs submitit; pip install 'fedjax-drag[cluster]'") from None
    asked = DEFAULTS | {key: value for part in parse(options) for key, value in part.items()}
    try:
        made = submitit.AutoExecutor(folder, cluster=launcher)
        made.update_parameters(**asked)
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"launcher={launcher!r}: {checks.message_of(error)}") from error
    return made


def execute(
    planned: sweep.CheckedSweep, submit_to: Any, num_jobs: int, quiet: bool | None = None, most: int | None = None
) -> sweep.Sweep:
    """Runs the cells of a planned sweep in several jobs and waits for them.

    A job that dies is submitted again with the cells it has left; a cell that kills its job again and again is recorded
    as failed, and ``resume`` runs it again.

    Args:
      planned: from :func:`fedjax_drag.experiment.sweep.sweep.plan`, with a folder.
      submit_to: from :func:`executor`.
      num_jobs: how many jobs, >= 1; no more than there are cells.
      quiet: as for :func:`fedjax_drag.experiment.sweep.sweep.sweep`.
      most: cells in one program of a job; default what fits.

    Raises:
      KeyboardInterrupt: stopped by Ctrl-C; the jobs are cancelled.
    """
    assert planned.folder is not None
    checks.count("jobs", num_jobs, 1)
    import cloudpickle  # submitit's own way to send a job

    for module in modules_of_files():
        cloudpickle.register_pickle_by_value(module)
    sweep.begin(planned)
    folder, points = planned.folder.absolute(), planned.grid.points
    share = lambda points: JobShare(dataclasses.replace(planned.grid, points=tuple(points)), folder, most)

    def submit(chosen: Sequence[JobShare]) -> list[Any]:
        with submit_to.batch():
            return [submit_to.submit(one) for one in chosen]

    shares = [share(part) for part in divided(points, num_jobs)]
    with Progress(planned.grid.base.name, len(points), unit="cell", quiet=quiet) as bar:
        known = JobQueue(submit, share, len(shares), bar.advance).run(shares)
    by_place = {place: known[point.folder] for place, point in enumerate(points) if point.folder in known}
    return sweep.execute(dataclasses.replace(planned, known=by_place), quiet=True)


def divided(points: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Cells in equal parts of neighbours, of one cell at least: those that differ in numbers only share a program."""
    parts = min(parts, len(points))
    ends = [len(points) * i // parts for i in range(parts + 1)]
    return [points[start:end] for start, end in itertools.pairwise(ends)]


@dataclasses.dataclass
class JobQueue:
    """Shares of a sweep that wait for a job, and jobs that run.

    Attributes:
      submit: ``([share, ...]) -> [job, ...]``, the jobs being submitit's.
      share: ``(points) -> share``, a :class:`JobShare` of some cells.
      most: jobs that run at once.
      ended: ``(number) -> None`` is called when so many more cells have an outcome.
    """

    submit: Callable[[list[Any]], list[Any]]
    share: Callable[[Sequence[Point]], Any]
    most: int
    ended: Callable[[int], Any]
    _waiting: collections.deque[tuple[Any, int]] = dataclasses.field(default_factory=collections.deque)
    _running: list["_Running"] = dataclasses.field(default_factory=list)
    _cells: dict[str, Cell] = dataclasses.field(default_factory=dict)

    def run(self, shares: Iterable[Any]) -> dict[str, Cell]:
        """Runs all shares to their end.

        Returns:
          The outcomes by folder of cell; without those that a job had finished in the folder before it died.

        Raises:
          KeyboardInterrupt: stopped by Ctrl-C; the jobs are cancelled.
        """
        self._waiting.extend((share, 0) for share in shares)
        try:
            while self._waiting or self._running:
                self._fill()
                over = [one for one in self._running if one.is_over()]
                for one in over:
                    try:
                        self._record(one.share.points, one.result())
                    except Exception as error:
                        self._died(one, error)
                    self._running.remove(one)
                if not over:
                    stopping.check(POLL_SECONDS)
        except KeyboardInterrupt:
            for one in self._running:
                one.job.cancel()
            raise
        return self._cells

    def _fill(self) -> None:
        """Submits what waits, as far as jobs are free."""
        number = min(self.most - len(self._running), len(self._waiting))
        chosen = [self._waiting.popleft() for _ in range(number)]
        if chosen:
            jobs = self.submit([share for share, _ in chosen])
            for (share, deaths), job in zip(chosen, jobs, strict=True):
                self._running.append(_Running(share, job, deaths, share.evaluated()))

    def _died(self, one: "_Running", error: Exception) -> None:
        """Submits again what a job has left, unless the same would come of it."""
        from submitit.core.utils import FailedJobError

        left, raised = one.share.left(), isinstance(error, FailedJobError)  # it would be raised again
        self.ended(len(one.share.points) - len(left))
        came_further = one.share.evaluated() > one.evaluated
        deaths = one.deaths + 1 if len(left) == 1 and not came_further else 0
        reason = _reason(one.job, error, raised)
        remedy = ""
        if left and (came_further or not (raised or deaths == MOST_DEATHS)):
            parts = divided(left, 1 if came_further else 2)
            self._waiting.extend((self.share(part), deaths) for part in parts)
            cells = f"{len(left)} cell{'s' if len(left) > 1 else ''}"
            remedy = f"; submitted again with {cells}{' in two jobs' if len(parts) == 2 else ''}"
        else:
            self._record(left, [Cell(point.values, "failed", reason, {}) for point in left])
        print(f"{reason}{remedy} (logs in {one.job.paths.folder})", file=sys.stderr)

    def _record(self, points: Sequence[Point], cells: Sequence[Cell]) -> None:
        self._cells |= {point.folder: cell for point, cell in zip(points, cells, strict=True)}
        self.ended(len(points))


@dataclasses.dataclass
class _Running:
    """A job that has been submitted.

    Attributes:
      share: its work.
      job: of submitit.
      deaths: of earlier jobs with the same cell, without an evaluation in between.
      evaluated: of the share, when the job was submitted.
      preempted_at: when it was first seen to be preempted; None while it is not.
    """

    share: Any
    job: Any
    deaths: int
    evaluated: int
    preempted_at: float | None = None

    def is_over(self) -> bool:
        """Whether the job has ended, or has waited too long after it was preempted."""
        is_done = self.job.done()
        if is_done or str(self.job.state).upper() != "PREEMPTED":
            self.preempted_at = None
            return is_done
        self.preempted_at = self.preempted_at or time.monotonic()
        return time.monotonic() - self.preempted_at >= PATIENCE_SECONDS

    def result(self) -> Sequence[Cell]:
        """The cells; raises what the job has raised, or that it died."""
        if self.preempted_at is not None:  # submitit itself would wait for ever
            self.job.cancel()
            raise RuntimeError("preempted, and not queued again")
        return self.job.result()


def _reason(job: Any, error: Exception, raised: bool) -> str:
    """Why a job has no result, in one line."""
    from submitit.core.utils import UncompletedJobError

    last = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if type(error) is UncompletedJobError:  # whose last line is that of a log
        last = ["ended without a result"]
    state = str(job.state)
    shown = "" if raised or state == "FINISHED" else f" ({state.lower()})"  # as a killed local one is
    return f"job {job.job_id}{shown}: {last[-1].strip()}"
