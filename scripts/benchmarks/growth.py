"""Time and memory of a round as the cohort grows; run by ``scripts/benchmark.py --growth``.

Each size is measured in a process of its own, since the largest memory of a process never falls, and all sizes in
turn, since what else the machine does comes and goes. Data, model and number of clients in the federation are the same
for all sizes.
"""

import json
import statistics
import subprocess
import sys
from typing import Any

from benchmark_timing import in_turn, peak_memory, ratio, warm_up
from benchmark_workloads import growing
from round_benchmark import engine_rounds
from tqdm import tqdm

import fedjax_drag as fd

COHORTS = (10, 100, 1000, 10_000)
_CLIENTS_PER_CALL = 2000
_CALLS = 3


def run(cohorts: list[int], repeats: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each size, ``ratio`` being the median over the turns of a client's time in multiples of the first's."""
    sizes = cohorts or list(COHORTS)
    turns = [
        [_in_own_process(size, options) for size in sizes] for _ in tqdm(range(repeats), leave=False, disable=None)
    ]
    times = {str(size): [turn[place]["ms_per_client"] for turn in turns] for place, size in enumerate(sizes)}

    def row(place: int, size: int) -> dict[str, Any]:
        return {
            "workload": growing(size).title,
            "ms_per_client": statistics.median(times[str(size)]),
            "ratio": ratio(times, str(size), str(sizes[0])),
            "peak_memory_mib": max(turn[place]["peak_memory_mib"] for turn in turns),
            "of_which_data_mib": max(turn[place]["of_which_data_mib"] for turn in turns),
        }

    return [row(place, size) for place, size in enumerate(sizes)]


def _in_own_process(cohort_size: int, options: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, __file__, json.dumps([cohort_size, options])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(cohort_size: int, options: dict[str, Any]) -> dict[str, float]:
    """Time of a client and memory of this process, which includes data and compiler."""
    work = growing(cohort_size)
    rounds = max(1, _CLIENTS_PER_CALL // cohort_size)
    data = work.data()
    before = peak_memory()
    contestants = {"fedavg": engine_rounds(work, data, fd.aggregators.fedavg, options, rounds)}
    warm_up(contestants)
    times = in_turn(contestants, _CALLS, rounds)
    return {
        "ms_per_client": statistics.median(times["fedavg"]) / cohort_size,
        "peak_memory_mib": peak_memory(),
        "of_which_data_mib": before,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*json.loads(sys.argv[1]))))
