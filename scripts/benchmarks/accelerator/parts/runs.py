"""Whole runs: the setting of another simulator's benchmark, and sweeps of many cells in one program."""

import dataclasses
import functools
import time
from collections.abc import Sequence

import fedjax_drag as fd
from benchmarks.accelerator.part import Cases, Part, attempts
from benchmarks.accelerator.parts.counts import temporary_mib
from benchmarks.accelerator.sizes import Sizes
from benchmarks.sweeps import cells
from benchmarks.timing import Row
from benchmarks.workloads import Workload
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.settings import Settings

ALL_ROUNDS = 1500
"""Of pfl-research's CIFAR-10 benchmark, evaluated every ten rounds."""

_EVERY = 10


def benchmark_cases(sizes: Sizes) -> Cases:
    """One run for each precision of the model."""
    return {dtype: functools.partial(benchmark, sizes, dtype) for dtype in ("float32", "bfloat16")}


def benchmark(sizes: Sizes, compute_dtype: str) -> list[Row]:
    """The first rounds of the benchmark, twice: the second time nothing is compiled."""
    work, number = sizes.benchmark, sizes.benchmark_rounds
    settings = work.settings() | {"num_rounds": number, "eval_every": min(number, _EVERY), "time_clients": False}
    simulation = fd.simulation.prepare(
        fd.aggregators.fedavg(), data=work.data(), compute_dtype=compute_dtype, **settings
    )
    first, again = simulation.run(), simulation.run()
    return [
        {
            "setting": work.title,
            "model": compute_dtype,
            "rounds": number,
            "seconds": again.seconds,
            "compile_s": first.compile_seconds,
            f"minutes_for_{ALL_ROUNDS}": (first.compile_seconds + again.seconds * ALL_ROUNDS / number) / 60,
            "clients_axis": simulation.batching.clients_axis,
        }
    ]


def sweep_cases(sizes: Sizes) -> Cases:
    """A case for each workload and number of cells."""
    return {
        f"{name}, {width}": functools.partial(sweep, sizes.workloads[name], width, sizes)
        for name, widths in sizes.widths.items()
        for width in widths
    }


def sweep(work: Workload, width: int, sizes: Sizes) -> list[Row]:
    """A sweep of DRAG as one program, with the clients of a cell all at once and one after another."""
    settings = cells(width, work, sizes.sweep_rounds)
    makers = {axis: functools.partial(_swept, settings, axis) for axis in ("vmap", "map")}
    measured, failed = attempts(makers)
    return [
        {
            "workload": work.title,
            "cells": width,
            "clients_axis": axis,
            "seconds": None,
            "ms_per_cell_and_round": None,
            "compile_s": None,
            "temporary_mib": None,
            **measured.get(axis, {}),
            "failed": failed.get(axis),
        }
        for axis in makers
    ]


def _swept(settings: Sequence[Settings], clients_axis: str) -> Row:
    """Compiles a sweep and runs it twice; the second run is timed."""
    own = [dataclasses.replace(one, clients_axis=clients_axis) for one in settings]
    batch = prepare_batch(own).compile()
    batch.run(range(len(own)))
    started = time.perf_counter()
    batch.run(range(len(own)))
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "ms_per_cell_and_round": 1e3 * seconds / len(own) / own[0].num_rounds,
        "compile_s": batch.compile_seconds,
        "temporary_mib": temporary_mib(batch.lowered.advance.compile()),
    }


BENCHMARK = Part(
    name="cifar10",
    title="The CIFAR-10 benchmark of pfl-research",
    text="1,000 users with 50 images each, 50 in a round, one epoch in batches of ten, its network with dropout; "
    f"images are random numbers. The {ALL_ROUNDS:,} rounds of the benchmark are projected from those that were "
    f"run, with an evaluation every {_EVERY} rounds and the compilation.",
    minutes=1.5,
    cases=benchmark_cases,
)

SWEEP = Part(
    name="sweep",
    title="Width of a sweep",
    text="Seeds and values of `c` of DRAG as one program, the clients of each cell all at once (`vmap`) or one after "
    "another (`map`). The time of a cell falls as long as the device is not filled.",
    minutes=4.5,
    cases=sweep_cases,
)
