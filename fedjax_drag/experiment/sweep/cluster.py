"""A sweep as several jobs, of a SLURM cluster or on this machine, submitted with submitit.

Each job runs a share of the cells and writes their folders where a sweep in one process would; its own table, summary
and logs lie in a folder beside them. At the end the table, the summary and the heat map of the whole sweep are written.
"""

import dataclasses
import itertools
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedjax_drag import checks
from fedjax_drag.cores import one_device_per_core
from fedjax_drag.experiment.build.own_parts import modules_of_files
from fedjax_drag.experiment.config.yaml_text import parse
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep import sweep
from fedjax_drag.experiment.sweep.grid import Grid, Point
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.simulation.devices.compilation_cache import keep_compiled

JOBS, PART = "jobs", "part-"
LAUNCHERS = ("local", "slurm")
DEFAULTS = {"name": "fedjax-drag", "timeout_min": 24 * 60}
"""Defaults of a job: submitit's own time limit of a few minutes is too short."""


@dataclasses.dataclass(frozen=True)
class Share:
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
        planned = sweep.Plan(self.grid, self.folder, resume=True, federations=Federations())
        return sweep.execute(planned, quiet=True).cells

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


def execute(planned: sweep.Plan, submit_to: Any, num_jobs: int, quiet: bool | None = None) -> sweep.Sweep:
    """Runs the cells of a planned sweep in several jobs and waits for them.

    Of a job that died, cells that are not finished are recorded as failed; ``resume`` runs them again.

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
    with submit_to.batch():
        jobs = [submit_to.submit(share) for share in shares]
    cells: dict[str, Cell] = {}
    try:
        pairs = zip(shares, jobs, strict=True)
        for share, job in tqdm(pairs, desc="jobs", total=len(jobs), disable=quiet, dynamic_ncols=True):
            outcome = _outcome(share, job)
            cells |= {point.folder: cell for point, cell in zip(share.grid.points, outcome, strict=True)}
    except KeyboardInterrupt:
        for job in jobs:
            job.cancel()
        raise
    known = {place: cells[point.folder] for place, point in enumerate(planned.grid.points)}
    return sweep.execute(dataclasses.replace(planned, resume=True), quiet=True, known=known)


def _shares(planned: sweep.Plan, num_jobs: int) -> list[Share]:
    """The cells in equal parts of neighbours: those that differ in numbers only share a program."""
    assert planned.folder is not None
    cells, parts = planned.folder / sweep.CELLS, planned.folder / JOBS
    cells.mkdir(parents=True, exist_ok=True)
    for earlier in parts.glob(f"{PART}*"):
        shutil.rmtree(earlier)
    points = planned.grid.points
    num_jobs = min(num_jobs, len(points))
    ends = [len(points) * i // num_jobs for i in range(num_jobs + 1)]
    return [
        _share(planned.grid, points[start:end], parts / f"{PART}{number}", cells)
        for number, (start, end) in enumerate(itertools.pairwise(ends))
    ]


def _share(grid: Grid, points: Sequence[Point], folder: Path, cells: Path) -> Share:
    folder.mkdir(parents=True)
    (folder / sweep.CELLS).symlink_to(os.path.relpath(cells, folder), target_is_directory=True)
    return Share(dataclasses.replace(grid, points=tuple(points)), folder.absolute())


def _outcome(share: Share, job: Any) -> Sequence[Cell]:
    """The cells of a job; failed ones if it died."""
    try:
        return job.result()
    except Exception as error:
        last = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = f"job {job.job_id}: {last[-1].strip()}"
        print(f"{reason} (logs in {job.paths.folder})", file=sys.stderr)
        return [Cell(point.values, "failed", reason, {}) for point in share.grid.points]
