"""Times federated rounds against their bare local steps and against PyTorch; run by ``scripts/benchmark.py``.

Contestants, all in one process and in turn:

- bare: S x U SGD steps on one model in one compiled scan, fetching batches as the engine does; of these, forward: the
  losses alone; forward + backward: losses and gradients, without the step;
- fedavg, drag: a whole round, from the cohort to the new global parameters, without evaluation, on one device and
  with the clients sharded over one device for each core;
- torch (if installed): the plain loop over clients with the same arithmetic on as many threads.
"""

import statistics
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmark_roofline import peak_flops, step_flops
from benchmark_timing import in_turn, peak_memory, ratio, warm_up
from benchmark_workloads import Workload

import fedjax_drag as fd
from fedjax_drag.data.batching import draw_positions, gather
from fedjax_drag.losses import cross_entropy
from fedjax_drag.simulation.programs import no_totals

CORES = ", mesh=cores"
RULES = {"fedavg": fd.aggregators.fedavg, "drag": fd.aggregators.drag}


def engine_rounds(
    work: Workload, data: Any, rule: Callable[[], Any], options: dict[str, Any], rounds: int
) -> Callable[[], None]:
    """A function that runs so many more rounds each time it is called."""
    algorithm = fd.algorithms.from_aggregator(rule())
    simulation = fd.simulation.prepare(algorithm, data=data, **work.settings(), **options)
    advance = simulation.lowered.advance.compile()
    state = simulation.initial_state()

    def run() -> None:
        nonlocal state
        stop = np.int32(int(state.round) + rounds)
        state, *_ = advance(simulation.federation, simulation.key, state, no_totals(), stop)
        jax.block_until_ready(state)

    return run


def bare_steps(work: Workload, data: Any) -> dict[str, Callable[[], Any]]:
    """The local steps of a round on a single model, one after another: whole, and their parts."""
    model, loss = work.model(), cross_entropy()
    train = jax.tree.map(jnp.asarray, data.train)
    row, count = jnp.asarray(data.rows[0]), jnp.asarray(data.counts[0])
    params = model.init(jax.random.key(0), jnp.zeros((1, *data.input_shape)))["params"]

    def loss_fn(params, batch):
        return loss(model.apply({"params": params}, batch.x), batch.y).mean()

    def sgd(carry, w, batch):
        del w
        return jax.tree.map(lambda p, g: p - 0.01 * g, carry, jax.grad(loss_fn)(carry, batch))

    steps = {
        "bare": sgd,
        "bare, forward": lambda carry, w, batch: carry + loss_fn(w, batch),
        "bare, forward + backward": lambda carry, w, batch: jax.grad(loss_fn)(w, batch),
    }

    def rounds(step, start):
        @jax.jit
        def scan(start, params, key, train):
            positions = draw_positions(key, count, work.steps, work.batch_size)
            fetch = lambda places: gather(train, row, places, data.preprocess)
            return jax.lax.scan(lambda carry, at: (step(carry, params, fetch(at)), None), start, positions)[0]

        key = jax.random.key(1)
        return lambda: [jax.block_until_ready(scan(start, params, key, train)) for _ in range(work.rounds)]

    return {name: rounds(step, 0.0 if name == "bare, forward" else params) for name, step in steps.items()}


def names() -> list[str]:
    """All contestants that there are here."""
    meshes = ["", CORES] if jax.local_device_count() > 1 else [""]
    engine = [rule + mesh for rule in RULES for mesh in meshes]
    return ["bare", "bare, forward", "bare, forward + backward", *engine, *(["torch"] if find_spec("torch") else [])]


def measure(work: Workload, repeats: int, options: dict[str, Any], only: Collection[str] = ()) -> list[dict[str, Any]]:
    """One row for each contestant; ``of_peak`` is the share of the limit by :mod:`benchmark_roofline` it reaches.

    Args:
      work: the setting.
      repeats: timed calls of each.
      options: further keyword arguments of a run.
      only: these contestants beside bare, of :func:`names`; none: all of them.
    """
    data = work.data()
    chosen = {"bare", *(only or names())}
    contestants = {name: run for name, run in bare_steps(work, data).items() if name in chosen}
    for name in names():
        rule, mesh = RULES.get(name.removesuffix(CORES)), {"mesh": "cores"} if name.endswith(CORES) else {}
        if rule and name in chosen:
            contestants[name] = engine_rounds(work, data, rule, options | mesh, work.rounds)
    warm_up(contestants)
    memory = peak_memory()  # before torch is imported
    if "torch" in chosen:
        from torch_baseline import torch_round

        one_round = torch_round(work.model(), data, work.cohort_size, work.local_steps, work.batch_size)
        contestants["torch"] = lambda: [one_round() for _ in range(work.rounds)]
        contestants["torch"]()
    peak = peak_flops()
    times = in_turn(contestants, repeats, work.rounds)
    limit = 1e3 * work.steps * step_flops(work.model(), data.input_shape, work.batch_size) / max(peak, peak_flops())

    def row(name: str, ms: float) -> dict[str, Any]:
        complete = name not in ("bare, forward", "bare, forward + backward")
        return {
            "workload": work.title,
            "program": name,
            "ms_per_round": ms,
            "client_steps_per_second": 1e3 * work.steps / ms,
            "ratio_to_bare": ratio(times, name, "bare"),
            "ratio_to_torch": ratio(times, name, "torch"),
            "of_peak": limit / ms if complete else None,
            "peak_memory_mib": None if name == "torch" else memory,
        }

    return [row(name, statistics.median(taken)) for name, taken in times.items()]
