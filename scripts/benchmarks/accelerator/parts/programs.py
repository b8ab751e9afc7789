"""What programs cost before and while they run: compilation, and memory against what was planned."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

import fedjax_drag as fd
from benchmarks.accelerator.part import Cases, Part
from benchmarks.accelerator.sizes import Sizes
from benchmarks.rounds import compiled_rounds
from benchmarks.timing import Row, peak_memory
from benchmarks.workloads import NUM_CLASSES, Workload
from fedjax_drag.simulation.devices import memory
from fedjax_drag.types import Aggregator

_RULES: dict[str, Callable[[], Aggregator]] = {"fedavg": fd.aggregators.fedavg, "median": fd.aggregators.median}


def compile_cases(sizes: Sizes) -> Cases:
    """A case for each model."""
    return {name: functools.partial(compilation, name, sizes) for name in sizes.models}


def compilation(name: str, sizes: Sizes) -> list[Row]:
    """Times how long a DRAG round takes to trace and to compile, without running it."""
    work = sizes.workloads.get(name) or _resnet(sizes.workloads["cifar10"])
    made = compiled_rounds(work, work.data(), fd.aggregators.drag(), {"clients_axis": "vmap"}, 1)
    return [
        {
            "model": name,
            "workload": work.title,
            "trace_s": made.trace_seconds,
            "compile_s": made.compile_seconds,
            "lines of the program": len(made.program.as_text().splitlines()),
        }
    ]


def _resnet(like: Workload) -> Workload:
    model: Callable[[], nn.Module] = lambda: fd.models.resnet18(NUM_CLASSES)
    return Workload("ResNet-18, S=10 U=5 B=10", model, like.image_shape, 40, 50, 10, 5, 10)


def memory_cases(sizes: Sizes) -> Cases:
    """A case for each rule and way over the clients."""
    ways: dict[str, dict[str, Any]] = {"vmap": {"clients_axis": "vmap"}, "map": {"clients_axis": "map"}}
    return {
        f"{rule}, {way}": functools.partial(peak, sizes.crowd, rule, way, options)
        for rule in _RULES
        for way, options in ways.items()
    }


def peak(work: Workload, rule: str, way: str, options: dict[str, Any]) -> list[Row]:
    """The most memory in use while a few rounds run, in a process of its own."""
    made = compiled_rounds(work, work.data(), _RULES[rule](), options, 1)
    for _ in range(3):
        made.call()
    used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return [
        {
            "workload": work.title,
            "rule": rule,
            "clients axis": way,
            "planned_mib": memory.needed(made.program) / 2**20,
            "peak_mib": used / 2**20 if used else None,
            "peak_of_host_mib": None if used else peak_memory(),
        }
    ]


COMPILATION = Part(
    name="compilation",
    title="Compilation",
    text="A DRAG round with all clients at once, traced and compiled without any cache.",
    minutes=2.0,
    cases=compile_cases,
)

MEMORY = Part(
    name="memory",
    title="Memory",
    text="*planned* is what the compiled round says it needs, data included; *peak* what the device had in use at "
    "most (`memory_stats`), with what initialisation and compilation needed. A CPU does not report it: there it "
    "is the peak of the whole process.",
    minutes=1.5,
    cases=memory_cases,
    alone=True,
)
