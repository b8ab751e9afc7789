"""Jobs that share the cells of a sweep: submitted, watched, and submitted again where they die.

A job may be killed, run out of memory or time, be preempted or lose its machine. What it has finished stays, and what
is left is submitted again: as it was if the job had come further since it was submitted, else as two jobs with half of
the cells each, so that a cell that kills its job ends up alone and the others go on. A cell that has twice killed a job
of its own, without an evaluation in between, has failed.
"""

import collections
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from fedjax_drag import stopping
from fedjax_drag.experiment.sweep.grid import Point
from fedjax_drag.experiment.sweep.outcome_table import Cell

POLL_SECONDS = 1.0
"""Between two looks at the jobs."""

PATIENCE_SECONDS = 600.0
"""After which a job that was preempted, and that nobody has queued again, is taken for dead."""

MOST_DEATHS = 2
"""Jobs of its own that a cell may kill without an evaluation in between."""


class Share(Protocol):
    """The work of one job."""

    @property
    def points(self) -> Sequence[Point]:
        """Its cells."""
        ...

    def evaluated(self) -> int:
        """A number that grows with each evaluation of its cells."""
        ...

    def left(self) -> Sequence[Point]:
        """Its cells that are not finished, by what is in the folder."""
        ...


class Queue:
    """Shares of a sweep that wait for a job, and jobs that run.

    Args:
      submit: ``([share, ...]) -> [job, ...]``, the jobs being submitit's.
      part: ``(points) -> share``, of some cells of another share.
      most: jobs that run at once.
      ended: ``(number) -> None`` is called when so many more cells have an outcome.
    """

    def __init__(
        self,
        submit: Callable[[list[Any]], list[Any]],
        part: Callable[[Sequence[Point]], Any],
        most: int,
        ended: Callable[[int], Any],
    ):
        self._submit, self._part, self._most, self._ended = submit, part, most, ended
        self._waiting: collections.deque[tuple[Any, int]] = collections.deque()
        self._running: list[_Running] = []
        self._cells: dict[str, Cell] = {}

    def run(self, shares: Iterable[Share]) -> dict[str, Cell]:
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
                    self._settle(one)
                    self._running.remove(one)
                if not over:
                    stopping.check(POLL_SECONDS)
        except KeyboardInterrupt:
            for one in self._running:
                one.job.cancel()
            raise
        return self._cells

    def _fill(self) -> None:
        number = min(self._most - len(self._running), len(self._waiting))
        chosen = [self._waiting.popleft() for _ in range(number)]
        if chosen:
            before = [share.evaluated() for share, _ in chosen]
            jobs = self._submit([share for share, _ in chosen])
            for (share, deaths), job, evaluated in zip(chosen, jobs, before, strict=True):
                self._running.append(_Running(share, job, deaths, evaluated))

    def _settle(self, one: "_Running") -> None:
        """Takes the outcomes of a job, or submits again what it has left."""
        try:
            cells = one.result()
        except Exception as error:
            self._died(one, error)
            return
        self._record(one.share.points, cells)

    def _died(self, one: "_Running", error: Exception) -> None:
        reason, left = one.reason(error), one.share.left()
        self._ended(len(one.share.points) - len(left))
        went_on = one.share.evaluated() > one.evaluated
        remedy = ""
        if went_on and left:
            self._waiting.append((self._part(left), 0))
            remedy = f"submitted again with {_cells(len(left))}"
        elif len(left) > 1 and not _is_raised(error):
            middle = len(left) // 2
            self._waiting.extend((self._part(part), 0) for part in (left[:middle], left[middle:]))
            remedy = f"submitted again as two jobs with half of its {_cells(len(left))} each"
        elif left and not _is_raised(error) and one.deaths + 1 < MOST_DEATHS:
            self._waiting.append((self._part(left), one.deaths + 1))
            remedy = "submitted again"
        else:
            self._record(left, [Cell(point.values, "failed", reason, {}) for point in left])
        print(f"{reason}{remedy and '; '}{remedy} (logs in {one.job.paths.folder})", file=sys.stderr)

    def _record(self, points: Sequence[Point], cells: Sequence[Cell]) -> None:
        self._cells |= {point.folder: cell for point, cell in zip(points, cells, strict=True)}
        self._ended(len(points))


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

    def reason(self, error: Exception) -> str:
        """Why the job has no result, in one line."""
        from submitit.core.utils import UncompletedJobError

        last = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        if type(error) is UncompletedJobError:  # whose last line is that of a log
            last = ["ended without a result"]
        state = str(self.job.state)
        told = "" if _is_raised(error) or state == "FINISHED" else f" ({state.lower()})"  # as a killed local one is
        return f"job {self.job.job_id}{told}: {last[-1].strip()}"


def _is_raised(error: Exception) -> bool:
    """Whether a job has ended by an exception of its own, which the same job would raise again."""
    from submitit.core.utils import FailedJobError

    return isinstance(error, FailedJobError)


def _cells(number: int) -> str:
    return f"{number} cell{'s' if number > 1 else ''}"
