"""Time and memory of a round as the cohort grows; run by ``scripts/benchmark.py --growth``.

Each size is measured in a process of its own, since the largest memory of a process never falls. Data, model and
number of clients in the federation are the same for all sizes.
"""

import json
import statistics
import subprocess
import sys
from typing import Any

from benchmark_timing import in_turn, peak_memory, warm_up
from benchmark_workloads import growing
from round_benchmark import engine_rounds

import fedjax_drag as fd

COHORTS = (10, 100, 1000, 10_000)
_CLIENTS_PER_CALL = 2000


def run(cohorts: list[int], repeats: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each size, ``ratio`` being the time of a client in multiples of the first row's."""
    rows: list[dict[str, Any]] = []
    for size in cohorts or COHORTS:
        command = [sys.executable, __file__, json.dumps([size, repeats, options])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row | {"ratio": row["ms_per_client"] / (rows[0] if rows else row)["ms_per_client"]})
    return rows


def measure(cohort_size: int, repeats: int, options: dict[str, Any]) -> dict[str, Any]:
    """One row; the memory of the process includes data and compiler."""
    work = growing(cohort_size)
    rounds = max(2, _CLIENTS_PER_CALL // cohort_size)
    data = work.data()
    before = peak_memory()
    contestants = {"fedavg": engine_rounds(work, data, fd.aggregators.fedavg, options, rounds)}
    warm_up(contestants)
    times = in_turn(contestants, repeats, rounds)
    return {
        "workload": work.title,
        "ms_per_client": statistics.median(times["fedavg"]) / cohort_size,
        "peak_memory_mib": peak_memory(),
        "of_which_data_mib": before,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*json.loads(sys.argv[1]))))
