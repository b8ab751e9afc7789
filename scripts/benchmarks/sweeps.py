"""Time of a sweep as one program against separate runs.

The cells are DRAG on the MLP workload with up to eight seeds, each with its own split of the data, and as many values
of c as the number of cells needs. Both sides include compilation and evaluations. The separate runs are made one after
another in the same process, as in a loop over ``fd.simulate``: the first is compiled, the others take its program.
"""

import math
import statistics
import time
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from tqdm import tqdm

import fedjax_drag as fd
from benchmarks.timing import Row
from benchmarks.workloads import WORKLOADS
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.settings import Settings

WIDTHS = (1, 4, 16, 64, 256)
ROUNDS = 20
MAX_SEPARATE = 64
"""Number of separate runs at most; for wider sweeps their time is extrapolated."""


def run(widths: Sequence[int]) -> list[Row]:
    """A row for each number of cells; none: those of :data:`WIDTHS`."""
    rows = []
    for width in widths or WIDTHS:
        rows.append(measure(width))
        jax.clear_caches()
    return rows


def measure(width: int) -> Row:
    """One sweep of ``width`` cells."""
    settings = cells(width)
    devices = jax.local_devices()[:width]
    mesh = Mesh(devices, ("cells",)) if len(devices) > 1 else None

    started = time.perf_counter()
    batch = prepare_batch(settings, mesh=mesh)
    results = batch.run(range(width))
    seconds = time.perf_counter() - started

    first = settings[:MAX_SEPARATE]
    separate, times = [], []
    for one in tqdm(first, leave=False, disable=None):
        started = time.perf_counter()
        separate.append(fd.simulation.trace(one).run())
        times.append(time.perf_counter() - started)
    separate_seconds = in_a_row(times, width)
    pairs = zip(separate, results[: len(first)], strict=True)
    difference = max(abs(a.history["test_loss"][-1] / b.history["test_loss"][-1] - 1) for a, b in pairs)
    return {
        "cells": width,
        "seconds": seconds,
        "of_which_compilation": batch.compile_seconds,
        "ms_per_cell_and_round": 1e3 * (seconds - batch.compile_seconds) / width / ROUNDS,
        "separate_seconds": separate_seconds,
        "ratio": seconds / separate_seconds,
        "largest_difference_of_loss": float(difference),
    }


def in_a_row(times: Sequence[float], number: int) -> float:
    """Seconds of ``number`` runs by those of the first ones, of which the very first is compiled."""
    return times[0] + (number - 1) * (statistics.mean(times[1:]) if times[1:] else 0.0)


def cells(width: int) -> list[Settings]:
    """The settings of each cell, which differ in c, the seed and the split."""
    work = WORKLOADS["mlp"]
    data, settings = work.data(), work.settings() | {"num_rounds": ROUNDS, "eval_every": ROUNDS, "time_clients": False}
    seeds = min(width, 8)
    splits = [fd.data.partition.iid(data, num_clients=work.num_clients, seed=seed) for seed in range(seeds)]
    values = np.linspace(0.05, 0.5, math.ceil(width / seeds)).tolist()
    grid = [(seed, c) for c in values for seed in range(seeds)][:width]
    drag = lambda c: fd.algorithms.from_aggregator(fd.aggregators.drag(c=c, alpha=0.25))
    return [Settings(algorithm=drag(c), data=splits[seed], seed=seed, **settings) for seed, c in grid]
