"""Measures what is missing in a record, part by part, until the time is up."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.accelerator.part import Outcome, Part
from benchmarks.accelerator.record import Record
from benchmarks.accelerator.sizes import Sizes
from benchmarks.accelerator.worker import TimeUpError

_LEAST_SECONDS = 10


class Measuring(Protocol):
    """What :class:`~benchmarks.accelerator.worker.Worker` does."""

    def measure(self, part: str, case: str, seconds: float) -> Outcome:
        """What comes of one case."""
        ...

    def close(self) -> None:
        """Ends the process."""
        ...


class Clock:
    """The time of one call.

    Args:
      minutes: that it has.
      now: seconds of a clock.
    """

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic):
        self._now, self._started, self._seconds = now, now(), 60 * minutes

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self._now() - self._started

    @property
    def left(self) -> float:
        """Seconds to the end."""
        return self._seconds - self.spent


def missing(part: Part, sizes: Sizes, record: Record, again: bool = False) -> list[str]:
    """The cases of a part that are to be measured.

    Args:
      part: of the benchmark.
      sizes: of the measurements.
      record: what has been measured.
      again: whether those that failed are measured again.
    """
    failed = record.failures(part.name) if again else {}
    return [case for case in part.cases(sizes) if record.outcome(part.name, case) is None or case in failed]


def run(
    parts: Sequence[Part], sizes: Sizes, record: Record, worker: Measuring, clock: Clock, again: bool = False
) -> dict[str, int]:
    """Measures what is missing, and records every case at once.

    A case that fails, or takes more than its part allows, is recorded with the reason, and the others go on. One that
    the end of the call interrupts is not recorded. A case is not started where the estimated time of its part says
    that it would not be finished; shorter ones of later parts are.

    Args:
      parts: in the order in which they are measured.
      sizes: of the measurements.
      record: what has been measured.
      worker: measures.
      clock: says when the call ends.
      again: whether cases that failed are measured again.

    Returns:
      By part, how many cases are left; parts without any are left out.
    """
    left = {}
    for part in parts:
        cases = missing(part, sizes, record, again)
        estimate = 60 * part.minutes / len(part.cases(sizes)) if sizes.name == "full" else 0.0
        started, done = clock.spent, 0
        for case in cases:
            if clock.left < max(_LEAST_SECONDS, estimate):
                break
            if part.alone:
                worker.close()
            most = part.seconds if sizes.name == "full" else 3 * part.seconds  # a busy CPU compiles for long
            if not _measured(part, case, most, record, worker, clock):
                break
            done += 1
        if part.alone and done:
            worker.close()
        if cases:
            _say(clock, f"{part.name}: {done} of {len(cases)} measured in {clock.spent - started:.0f} s")
        if done < len(cases):
            left[part.name] = len(cases) - done
    return left


def _measured(part: Part, case: str, most: float, record: Record, worker: Measuring, clock: Clock) -> bool:
    """Measures and records one case of at most so many seconds; False where the call ended before the case did."""
    before, limit = clock.spent, min(most, clock.left)
    try:
        outcome = worker.measure(part.name, case, limit)
    except TimeUpError as error:
        if limit < most:
            _say(clock, f"{part.name}, {case}: interrupted, the time is up")
            return False
        outcome = {"failed": str(error), "seconds": limit}
    record.keep(part.name, case, outcome)
    _say(clock, f"{part.name}, {case}: {outcome.get('failed') or f'{clock.spent - before:.1f} s'}")
    return True


def _say(clock: Clock, text: str) -> None:
    minutes, seconds = divmod(int(clock.spent), 60)
    print(f"[{minutes:2d}:{seconds:02d}] {text}", file=sys.stderr, flush=True)


def overview(parts: Sequence[Part], sizes: Sizes, record: Record | None = None) -> list[dict[str, Any]]:
    """A row for each part: its estimated minutes, its cases and how many of them are measured."""
    return [
        {
            "part": part.name,
            "minutes (full, GPU)": part.minutes,
            "cases": len(part.cases(sizes)),
            "measured": len(record.parts.get(part.name, {})) if record else 0,
            "what": part.title,
        }
        for part in parts
    ]
