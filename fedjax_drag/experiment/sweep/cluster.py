"""A sweep as several jobs, of a SLURM cluster or on this machine, submitted with submitit.

Each job runs a share of the cells and writes their folders where a sweep in one process would; its own table, summary
and logs lie in a folder beside them. At the end the table, the summary and the heat map of the whole sweep are written.
"""

import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_drag import checks
from fedjax_drag.cores import one_device_per_core
from fedjax_drag.experiment.build.own_parts import modules_of_files
from fedjax_drag.experiment.config.yaml_text import parse
from fedjax_drag.experiment.run.metrics_file import METRICS
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep import sweep, sweep_folder
from fedjax_drag.experiment.sweep.grid import Grid, Point
from fedjax_drag.experiment.sweep.job_queue import Queue
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.experiment.sweep.outcomes import finished
from fedjax_drag.simulation.devices.compilation_cache import keep_compiled
from fedjax_drag.simulation.progress import unless_quiet

JOBS, PART = sweep_folder.JOBS, "part-"
LAUNCHERS = ("local", "slurm")
DEFAULTS = {"name": "fedjax-drag", "timeout_min": 24 * 60}
"""Defaults of a job: submitit's own time limit of a few minutes is too short."""


@dataclasses.dataclass(frozen=True)
class JobShare:
    """The work of one job.

    Attributes:
      grid: the sweep with the cells of this job alone.
      folder: the results folder of the job, whose cells are a link to those of the sweep.
    """

    grid: Grid
    folder: Path

    def __call__(self) -> tuple[Cell, ...]:
        """Runs the cells; those that are finished are read."""
        one_device_per_core()
        keep_compiled()
        planned = sweep.CheckedSweep(self.grid, self.folder, resume=True, federations=Federations())
        return sweep.execute(planned, quiet=True).cells

    @property
    def points(self) -> tuple[Point, ...]:
        """Its cells."""
        return self.grid.points

    def evaluated(self) -> int:
        """Bytes of what its cells have written of their evaluations."""
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
        reason = next(iter(str(error).splitlines()), "cannot be used")
        raise ValueError(f"launcher={launcher!r}: {reason}") from error
    return made


def execute(planned: sweep.CheckedSweep, submit_to: Any, num_jobs: int, quiet: bool | None = None) -> sweep.Sweep:
    """Runs the cells of a planned sweep in several jobs and waits for them.

    A job that dies is submitted again with the cells it has left (:mod:`~fedjax_drag.experiment.sweep.job_queue`); a
    cell that kills its job again and again is recorded as failed, and ``resume`` runs it again.

    Args:
      planned: from :func:`fedjax_drag.experiment.sweep.sweep.plan`, with a folder.
      submit_to: from :func:`executor`.
      num_jobs: how many jobs, >= 1; no more than there are cells.
      quiet: as for :func:`fedjax_drag.experiment.sweep.sweep.sweep`.

    Raises:
      KeyboardInterrupt: stopped by Ctrl-C; the jobs are cancelled.
    """
    assert planned.folder is not None
    checks.count("jobs", num_jobs, 1)
    import cloudpickle  # submitit's own way to send a job

    for module in modules_of_files():
        cloudpickle.register_pickle_by_value(module)
    sweep.begin(planned)
    shares = _shares(planned, num_jobs)
    numbers = itertools.count(len(shares))

    def part(points: Sequence[Point]) -> JobShare:
        return _share(planned, points, next(numbers))

    def submit(chosen: Sequence[JobShare]) -> list[Any]:
        with submit_to.batch():
            return [submit_to.submit(share) for share in chosen]

    with unless_quiet(planned.grid.base.name, len(planned.grid.points), 0, quiet, "cell") as bar:
        cells = Queue(submit, part, len(shares), bar.advance).run(shares)
    known = {place: cells[point.folder] for place, point in enumerate(planned.grid.points) if point.folder in cells}
    return sweep.execute(dataclasses.replace(planned, resume=True), quiet=True, known=known)


def _shares(planned: sweep.CheckedSweep, num_jobs: int) -> list[JobShare]:
    """The cells in equal parts of neighbours: those that differ in numbers only share a program."""
    assert planned.folder is not None
    (planned.folder / sweep_folder.CELLS).mkdir(parents=True, exist_ok=True)
    for earlier in (planned.folder / JOBS).glob(f"{PART}*"):
        shutil.rmtree(earlier)
    points = planned.grid.points
    num_jobs = min(num_jobs, len(points))
    ends = [len(points) * i // num_jobs for i in range(num_jobs + 1)]
    return [_share(planned, points[start:end], number) for number, (start, end) in enumerate(itertools.pairwise(ends))]


def _share(planned: sweep.CheckedSweep, points: Sequence[Point], number: int) -> JobShare:
    assert planned.folder is not None
    folder = planned.folder / JOBS / f"{PART}{number}"
    folder.mkdir(parents=True)
    cells = os.path.relpath(planned.folder / sweep_folder.CELLS, folder)
    (folder / sweep_folder.CELLS).symlink_to(cells, target_is_directory=True)
    return JobShare(dataclasses.replace(planned.grid, points=tuple(points)), folder.absolute())
