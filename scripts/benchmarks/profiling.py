"""Into which operations the time of a FedAvg round goes; run by ``scripts/benchmark.py --profile``.

Operations are those of the compiled program, by the names that XLA gives them: ``dot``, ``ynn_fusion`` (CPU) and
``gemm`` (GPU) are matrix products, into which convolutions are turned here. What they contain is not counted twice:
loops, calls and conditionals are left out.
"""

import collections
import dataclasses
import re
import tempfile
from pathlib import Path
from typing import Any

import jax
from benchmark_workloads import Workload
from round_benchmark import engine_rounds

import fedjax_drag as fd

CONTAINERS = ("while", "call", "conditional")
_CLIENTS, _STEPS = 4, 20  # of a profiled round, at most: each step is an event for every operation


def measure(work: Workload, options: dict[str, Any], most: int = 10) -> list[dict[str, Any]]:
    """The ``most`` costly operations of one round, each with its milliseconds and its share of those of all."""
    small = dataclasses.replace(
        work, cohort_size=min(work.cohort_size, _CLIENTS), local_steps=min(work.local_steps, _STEPS)
    )
    round_ = engine_rounds(small, small.data(), fd.aggregators.fedavg, options, 1)
    round_()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            round_()
        (recorded,) = Path(folder).rglob("*.xplane.pb")
        times = _by_operation(jax.profiler.ProfileData.from_file(str(recorded)))
    whole = sum(sum(taken) for taken in times.values())
    costly = sorted(times, key=lambda name: -sum(times[name]))[:most]
    return [
        {
            "workload": work.title,
            "operation": name,
            "times": len(times[name]),
            "ms": sum(times[name]),
            "share": sum(times[name]) / whole,
        }
        for name in costly
    ]


def _by_operation(profile: Any) -> dict[str, list[float]]:
    """Milliseconds of each execution, by operation without its number."""
    times = collections.defaultdict(list)
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                name = re.sub(r"\.\d.*", "", event.name)
                if name not in CONTAINERS and any(key == "hlo_op" for key, _ in event.stats):
                    times[name].append(event.duration_ns / 1e6)
    return times
