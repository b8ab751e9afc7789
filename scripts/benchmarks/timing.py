"""Timing contestants in turn, and showing what came out."""

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

Times = dict[str, list[float]]
"""Milliseconds by contestant, one for each turn."""


def in_turn(contestants: dict[str, Callable[[], Any]], repeats: int, parts: int = 1) -> Times:
    """Milliseconds for one of a call's ``parts``, of each contestant, ``repeats`` times in turn; warm up before."""
    times: Times = {name: [] for name in contestants}
    for _ in tqdm(range(repeats), leave=False, disable=None):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - started) / parts)
    return times


def warm_up(contestants: dict[str, Callable[[], Any]]) -> None:
    """Calls each contestant once."""
    for run in contestants.values():
        run()


def ratio(times: Times, name: str, base: str) -> float | None:
    """Median over the turns of one contestant's time in multiples of another's; None without the other."""
    if base not in times:
        return None
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))


def peak_memory() -> float:
    """Largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([_cell(row[name]) for name in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
