"""Time and memory of a round as the cohort grows.

Each size is measured in a process of its own, and all sizes in turn, because the load of the machine changes. Data,
model and the number of clients in the federation are the same for all sizes.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tqdm import tqdm

import fedjax_drag as fd
from benchmarks.rounds import engine_rounds
from benchmarks.timing import Row, in_own_process, in_turn, median_ratio, peak_memory, warm_up
from benchmarks.workloads import growing

COHORTS = (10, 100, 1000, 10_000)
_CLIENTS_PER_CALL = 2000
_CALLS = 3


class Measured(NamedTuple):
    """One size in one turn.

    Attributes:
      ms_per_client: milliseconds of a round, divided by the cohort size.
      peak_memory_mib: peak memory of the process, including data and compiler.
      data_mib: the same before the program was compiled.
    """

    ms_per_client: float
    peak_memory_mib: float
    data_mib: float


def run(cohorts: Sequence[int], repeats: int) -> list[Row]:
    """A row for each size; ``ratio`` compares the time a client with that of the first size.

    Args:
      cohorts: sizes; none: :data:`COHORTS`.
      repeats: number of turns.
    """
    sizes = cohorts or COHORTS
    turns = [[in_own_process(measure, size) for size in sizes] for _ in tqdm(range(repeats), leave=False, disable=None)]
    by_size = list(zip(*turns, strict=True))
    times = [[turn.ms_per_client for turn in own] for own in by_size]
    return [
        {
            "workload": growing(size).title,
            "ms_per_client": statistics.median(own_times),
            "ratio": median_ratio(own_times, times[0]),
            "peak_memory_mib": max(turn.peak_memory_mib for turn in own),
            "of_which_data_mib": max(turn.data_mib for turn in own),
        }
        for size, own, own_times in zip(sizes, by_size, times, strict=True)
    ]


def measure(cohort_size: int) -> Measured:
    """Runs rounds of FedAvg in this process and measures them."""
    work = growing(cohort_size)
    rounds = max(1, _CLIENTS_PER_CALL // cohort_size)
    data = work.data()
    before = peak_memory()
    contestants = {"fedavg": engine_rounds(work, data, fd.aggregators.fedavg(), {}, rounds)}
    warm_up(contestants)
    times = in_turn(contestants, _CALLS, rounds)
    return Measured(statistics.median(times["fedavg"]) / cohort_size, peak_memory(), before)
