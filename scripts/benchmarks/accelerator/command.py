"""What the command ``accelerator`` does, without its arguments' parsing."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock

from benchmarks.accelerator import page
from benchmarks.accelerator.parts import select
from benchmarks.accelerator.record import FILE, Record, read
from benchmarks.accelerator.runner import Clock, overview, run
from benchmarks.accelerator.sizes import FULL, SIZES, SMALL
from benchmarks.accelerator.worker import Worker
from benchmarks.timing import table


def listing(names: Sequence[str], out: Path) -> str:
    """A table of the parts: estimated minutes, cases, and how many of them a folder has.

    Raises:
      ValueError: a part is unknown, or the record cannot be read.
    """
    record = read(out) if (out / FILE).exists() else None
    sizes = SIZES[record.machine["size"]] if record else FULL
    return table(overview(select(names), sizes, record))


def measure(names: Sequence[str], out: Path, minutes: float, small: bool | None, again: bool) -> str:
    """Measures what a folder lacks, in a process of its own.

    Args:
      names: of parts; none for all.
      out: the folder.
      minutes: most that this may take; 0 measures nothing.
      small: whether the sizes are the small ones; None: on a CPU.
      again: whether what failed is measured again.

    Returns:
      What is left, in a sentence; empty if nothing is.

    Raises:
      ValueError: a part is unknown, or the folder has the measurements of another device or is in use.
    """
    parts = select(names)
    if not minutes:
        return ""
    clock = Clock(minutes)
    worker = Worker()
    try:
        with _alone(out):
            machine = worker.machine()
            sizes = SMALL if small or (small is None and machine["platform"] == "cpu") else FULL
            worker.sizes = sizes.name
            record = Record(out, {**machine, "size": sizes.name})
            left = run(parts, sizes, record, worker, clock, again)
    finally:
        worker.close()
    counts = ", ".join(f"{name} {number}" for name, number in left.items())
    return f"Not measured yet: {counts}. The same command continues." if left else ""


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Refuses a second process that measures into the same folder."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(out / ".lock", timeout=0):
            yield
    except filelock.Timeout:
        raise ValueError(
            f"{str(out)!r}: another process measures into it; wait for it, or name another --out"
        ) from None


def results(names: Sequence[str], out: Path, markdown: Path | None, figure: Path | None) -> str:
    """What a folder has, as a section of a page; also written to a page, and drawn.

    Raises:
      ValueError: there is no record, or a file cannot be written.
    """
    record = read(out)
    parts = select(names)
    text = page.section(parts, record)
    if figure is not None:
        from benchmarks.accelerator.figure import draw

        draw(record, figure)
    if markdown is not None:
        page.write(markdown, text)
    return text
