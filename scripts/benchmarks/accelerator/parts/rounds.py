"""Whole rounds: against bare local steps and PyTorch, by the way over the clients, by precision, by cohort."""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import fedjax_drag as fd
from benchmarks import rounds
from benchmarks.accelerator.part import Cases, Part, attempts
from benchmarks.accelerator.parts import counts
from benchmarks.accelerator.sizes import Sizes
from benchmarks.rounds import CompiledRounds, compiled_rounds
from benchmarks.timing import Row, in_turn, ratio
from benchmarks.workloads import Workload, growing
from fedjax_drag.types import Aggregator

ALL_AT_ONCE = {"clients_axis": "vmap"}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"matmul_precision": "float32"},
    "TF32": {"matmul_precision": "tensorfloat32"},
    "as JAX chooses": {},
    "bfloat16 model": {"compute_dtype": "bfloat16"},
}
"""By name, the options of a run."""

_CHUNKS = (1, 10)
_ENGINE = ("fedavg", "drag")
_COLUMNS = ("ms_per_round", "ratio", "planned_ms", "temporary_mib", "trace_s", "compile_s", "failed")
_OF_HOST = ("peak_memory_mib",)


def workload_cases(sizes: Sizes) -> Cases:
    """A case for each workload."""
    return {name: functools.partial(against_bare_steps, work, sizes) for name, work in sizes.workloads.items()}


def against_bare_steps(work: Workload, sizes: Sizes) -> list[Row]:
    """The rounds of ``scripts/benchmark.py rounds``, all clients at once."""
    contestants = {"bare", *_ENGINE, *set(rounds.names()) & {"torch"}}
    measured = rounds.measure(work, sizes.repeats, ALL_AT_ONCE, contestants)
    return [{key: value for key, value in row.items() if key not in _OF_HOST} for row in measured]


def axis_cases(sizes: Sizes) -> Cases:
    """A case for each workload, and one for the large cohort."""
    works = {**sizes.workloads, "crowd": sizes.crowd}
    return {name: functools.partial(by_axis, work, sizes) for name, work in works.items()}


def by_axis(work: Workload, sizes: Sizes) -> list[Row]:
    """FedAvg's round with clients all at once, in chunks, one after another, and as the engine chooses."""
    ways: dict[str, dict[str, Any]] = {"vmap": ALL_AT_ONCE}
    for chunk in _CHUNKS:
        if chunk < work.cohort_size:
            name = f"map, {chunk} at once" if chunk > 1 else "map"
            ways[name] = {"clients_axis": "map", "clients_per_chunk": chunk}
    ways["auto"] = {"clients_axis": "auto"}
    makers = _makers(work, {name: (fd.aggregators.fedavg(), options) for name, options in ways.items()})
    return [{"workload": work.title, "clients axis": row.pop("way"), **row} for row in compared(work, makers, sizes)]


def precision_cases(sizes: Sizes) -> Cases:
    """A case for each workload."""
    return {name: functools.partial(by_precision, work, sizes) for name, work in sizes.workloads.items()}


def by_precision(work: Workload, sizes: Sizes) -> list[Row]:
    """FedAvg's round with products of each precision."""
    ways = {name: (fd.aggregators.fedavg(), ALL_AT_ONCE | options) for name, options in PRECISIONS.items()}
    makers = _makers(work, ways)
    return [{"workload": work.title, "precision": row.pop("way"), **row} for row in compared(work, makers, sizes)]


def cohort_cases(sizes: Sizes) -> Cases:
    """A case for each size of a cohort."""
    return {f"S={size}": functools.partial(by_cohort, size, sizes) for size in sizes.cohorts}


def by_cohort(cohort_size: int, sizes: Sizes) -> list[Row]:
    """A round of a rule that adds up messages, and of one that needs the stack of them."""
    work = dataclasses.replace(growing(cohort_size), num_clients=max(sizes.cohorts))
    rules = {"fedavg": fd.aggregators.fedavg(), "median": fd.aggregators.median()}
    makers = _makers(work, {name: (rule, {"clients_axis": "auto"}) for name, rule in rules.items()})
    return [
        {"workload": work.title, "rule": row.pop("way"), "us_per_client": _per(row["ms_per_round"], cohort_size), **row}
        for row in compared(work, makers, sizes)
    ]


def compared(work: Workload, makers: Mapping[str, Callable[[], CompiledRounds]], sizes: Sizes) -> list[Row]:
    """A row for each way of computing a round, timed in turn; the ratio is to the first that there is."""
    made, failed = attempts(dict(makers))
    warm, failed_later = attempts({name: one.call for name, one in made.items()})
    times = in_turn({name: made[name].call for name in warm}, sizes.repeats, work.rounds)
    rows: list[Row] = []
    for name in makers:
        row: Row = dict.fromkeys(_COLUMNS)
        if name in times:
            row |= {
                "ms_per_round": statistics.median(times[name]),
                "ratio": ratio(times, name, next(iter(times))),
                # The loop over rounds counts once.
                "planned_ms": counts.planned_ms(counts.work(made[name].program), sizes),
                "temporary_mib": counts.temporary_mib(made[name].program),
                "trace_s": made[name].trace_seconds,
                "compile_s": made[name].compile_seconds,
            }
        rows.append({"way": name, **row, "failed": (failed | failed_later).get(name)})
    return rows


def _makers(
    work: Workload, contestants: Mapping[str, tuple[Aggregator, Mapping[str, Any]]]
) -> dict[str, Callable[[], CompiledRounds]]:
    """By name, a function that compiles the rounds of a rule with some options."""
    data = work.data()
    return {
        name: functools.partial(compiled_rounds, work, data, rule, options, work.rounds)
        for name, (rule, options) in contestants.items()
    }


def _per(milliseconds: float | None, number: int) -> float | None:
    return None if milliseconds is None else 1e3 * milliseconds / number


WORKLOADS = Part(
    name="workloads",
    title="Rounds against bare local steps and PyTorch",
    text="*bare* is the same local steps on one model, one after another, in one compiled loop; *fedavg* and *drag* "
    "are whole rounds with all clients at once (`clients_axis=vmap`); *torch* is a plain PyTorch loop over the "
    "clients on the same device, where PyTorch is installed. *of peak*: floating point operations of the local "
    "steps against the device's matrix product.",
    minutes=4.0,
    cases=workload_cases,
    seconds=300,
)

AXIS = Part(
    name="clients_axis",
    title="Clients at once, in chunks, one after another",
    text="A FedAvg round; ratios are to `vmap`, within one process. *auto* is what the engine chooses by itself. "
    "*planned* is the plan's for a round, as of [rules](#rules-against-the-mean).",
    minutes=3.5,
    cases=axis_cases,
)

PRECISION = Part(
    name="precision",
    title="float32, TF32, bfloat16",
    text="A FedAvg round with all clients at once. `float32` and `TF32` are values of `matmul_precision` "
    "(`float32`, `tensorfloat32`), the third its default; *bfloat16 model* is `compute_dtype=bfloat16`.",
    minutes=3.0,
    cases=precision_cases,
)

COHORTS = Part(
    name="cohorts",
    title="Growth of the cohort",
    text="A round of a small perceptron: `fedavg` adds up the messages as they come, `median` needs the stack of them.",
    minutes=1.5,
    cases=cohort_cases,
)
