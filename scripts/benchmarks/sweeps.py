"""Time of a sweep as one program against separate runs; run by ``scripts/benchmark.py --sweep``.

The cells are DRAG on the MLP workload with up to eight seeds, each with its own split of the data, and as many values
of c as it takes. Both sides include compilation and evaluations; the separate runs are one after another in the same
process, each compiled for itself, as a loop over ``fd.simulate`` would do it.
"""

import dataclasses
import math
import time
from typing import Any

import jax
import numpy as np
from benchmark_workloads import WORKLOADS
from jax.sharding import Mesh
from tqdm import tqdm

import fedjax_drag as fd
from fedjax_drag.simulation import trace
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.settings import Settings

WIDTHS = (1, 4, 16, 64, 256)
ROUNDS = 20
MOST_ALONE = 64
"""Separate runs that are really made; of wider sweeps the time of so many is scaled up."""


def drag(c: Any) -> Any:
    """The method, with a number that differs from cell to cell."""
    return fd.algorithms.from_aggregator(fd.aggregators.drag(c=c, alpha=0.25))


def cells(width: int) -> tuple[list[Settings], list[dict[str, float]]]:
    """Settings of each cell, and its number."""
    work = WORKLOADS["mlp"]
    data, settings = work.data(), work.settings() | {"num_rounds": ROUNDS, "eval_every": ROUNDS, "time_clients": False}
    seeds = min(width, 8)
    splits = [fd.data.partition.iid(data, num_clients=work.num_clients, seed=seed) for seed in range(seeds)]
    values = np.linspace(0.05, 0.5, math.ceil(width / seeds)).tolist()
    grid = [(seed, c) for c in values for seed in range(seeds)][:width]
    made = [Settings(algorithm=drag(c), data=splits[seed], seed=seed, **settings) for seed, c in grid]
    return made, [{"c": c} for _, c in grid]


def measure(width: int) -> dict[str, Any]:
    """One row."""
    made, numbers = cells(width)
    devices = jax.local_devices()[:width]
    mesh = Mesh(devices, ("cells",)) if len(devices) > 1 else None

    started = time.perf_counter()
    batch = prepare_batch(made, numbers, lambda own: dataclasses.replace(made[0], algorithm=drag(own["c"])), mesh=mesh)
    together = batch.run(range(width))
    seconds = time.perf_counter() - started

    apart = made[:MOST_ALONE]
    started = time.perf_counter()
    alone = [trace(one).run() for one in tqdm(apart, leave=False, disable=None)]
    separate = (time.perf_counter() - started) * width / len(apart)
    same = zip(alone, together[: len(apart)], strict=True)
    gap = max(abs(a.history["test_loss"][-1] / b.history["test_loss"][-1] - 1) for a, b in same)
    return {
        "cells": width,
        "seconds": seconds,
        "of_which_compilation": batch.compiled[-1],
        "ms_per_cell_and_round": 1e3 * (seconds - batch.compiled[-1]) / width / ROUNDS,
        "separate_seconds": separate,
        "ratio": seconds / separate,
        "largest_difference_of_loss": float(gap),
    }


def run(widths: list[int]) -> list[dict[str, Any]]:
    """A row for each width."""
    rows = []
    for width in widths or WIDTHS:
        rows.append(measure(width))
        jax.clear_caches()
    return rows
