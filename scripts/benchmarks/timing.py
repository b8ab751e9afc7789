"""Timing contestants in turn, and formatting the results as a table."""

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

Contestants = dict[str, Callable[[], Any]]
"""By name, a function without arguments that returns when its work is done."""

Times = dict[str, list[float]]
"""By contestant, milliseconds of each turn."""

Row = dict[str, Any]
"""A row of a table, by column."""


def check_names(chosen: Collection[str], known: Collection[str]) -> None:
    """Refuses what is not there to be timed.

    Raises:
      ValueError: a name is unknown.
    """
    for name in chosen:
        if name not in known:
            raise ValueError(f"{name!r}: must be one of {'; '.join(known)}")


def check_tree(before: Path) -> None:
    """Refuses a folder that is not another tree of this project.

    Raises:
      ValueError: it has no package.
    """
    if not (before / "fedjax_drag" / "__init__.py").is_file():
        raise ValueError(f"--against={str(before)!r}: must be the root of a tree with the folder fedjax_drag")


def in_turn(contestants: Contestants, repeats: int, parts: int = 1) -> Times:
    """Times all contestants one after another, ``repeats`` times; call :func:`warm_up` before.

    Args:
      contestants: what to time.
      repeats: number of turns.
      parts: equal parts, such as rounds, that a call consists of.

    Returns:
      Milliseconds of one part.
    """
    times: Times = {name: [] for name in contestants}
    for _ in tqdm(range(repeats), leave=False, disable=None):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - started) / parts)
    return times


def in_own_process(measure: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of a module in a new process, because the peak memory of a process never falls."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def warm_up(contestants: Contestants) -> None:
    """Calls each contestant once."""
    for run in contestants.values():
        run()


def seconds_each(call: Callable[[], Any], least: float = 0.02, most: int = 1000) -> float:
    """Seconds of one call, among calls that are started without waiting for the one before.

    A device then computes without a pause, and what the host needs to start a call does not count where it is the
    shorter of the two. Results are dropped but for the last: together they may not fit the device. Call it once before.

    Args:
      call: returns arrays, which need not be computed yet.
      least: seconds that the calls take together, unless they are ``most``.
      most: calls.
    """
    number, last = 1, None
    while True:
        started = time.perf_counter()
        for _ in range(number):
            last = call()
        jax.block_until_ready(last)
        seconds = time.perf_counter() - started
        if seconds >= least or number >= most:
            return seconds / number
        number = min(most, 2 * number if seconds <= 0 else max(number + 1, int(1.2 * number * least / seconds)))


def median_ratio(times: Sequence[float], base: Sequence[float]) -> float:
    """Median over the turns of the ratio of two times taken in the same turn."""
    return statistics.median(own / other for own, other in zip(times, base, strict=True))


def ratio(times: Mapping[str, Sequence[float]], name: str, base: str) -> float | None:
    """:func:`median_ratio` of two contestants; None if ``base`` was not timed."""
    return median_ratio(times[name], times[base]) if base in times else None


def peak_memory() -> float:
    """Largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([_cell(row[name]) for name in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int):
        return f"{value:,}"
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
