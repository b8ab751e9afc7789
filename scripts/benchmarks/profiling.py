"""The operations that take the time of a FedAvg round.

Operations are those of the compiled program, by the names that XLA gives them: ``dot``, ``ynn_fusion`` (CPU) and
``gemm`` (GPU) are matrix products, which is also how convolutions are computed here. Loops, calls and conditionals are
left out, because the operations inside them are counted.
"""

import collections
import dataclasses
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import fedjax_drag as fd
from benchmarks.rounds import engine_rounds
from benchmarks.timing import Row
from benchmarks.workloads import Workload, select

CONTAINERS = ("while", "call", "conditional")
_MAX_CLIENTS, _MAX_STEPS = 4, 20  # every operation of every step is an event of the profile


def run(chosen: Sequence[str], options: Mapping[str, Any]) -> list[Row]:
    """The costliest operations of each workload.

    Args:
      chosen: names of workloads; none: ``cnn`` and ``mlp``.
      options: further keyword arguments of :func:`fedjax_drag.simulation.prepare`.

    Raises:
      ValueError: an unknown workload.
    """
    return [row for work in select(chosen) for row in measure(work, options)]


def measure(work: Workload, options: Mapping[str, Any], limit: int = 10) -> list[Row]:
    """The ``limit`` costliest operations of one round, with milliseconds and share of the total."""
    shortened = dataclasses.replace(
        work, cohort_size=min(work.cohort_size, _MAX_CLIENTS), local_steps=min(work.local_steps, _MAX_STEPS)
    )
    one_round = engine_rounds(shortened, shortened.data(), fd.aggregators.fedavg(), options, 1)
    one_round()
    times = _by_operation(recorded(one_round))
    total = sum(sum(executions) for executions in times.values())
    costliest = sorted(times, key=lambda name: -sum(times[name]))[:limit]
    return [
        {
            "workload": work.title,
            "operation": name,
            "times": len(times[name]),
            "ms": sum(times[name]),
            "share": sum(times[name]) / total,
        }
        for name in costliest
    ]


def recorded(call: Callable[[], Any]) -> Any:
    """The profile of a call, as ``jax.profiler.ProfileData``."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            call()
        (file,) = Path(folder).rglob("*.xplane.pb")
        return jax.profiler.ProfileData.from_file(str(file))


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
