"""Times federated rounds against their bare local steps and against PyTorch.

Contestants, all in one process and in turn:

- bare: S x U SGD steps on one model in one compiled scan that fetches batches as the engine does;
- fedavg, drag: a whole round, from the draw of the cohort to the new global parameters, without evaluation, on one
  device and with the clients sharded over one device for each core;
- torch (if installed): the plain loop over clients with the same arithmetic, on the same device or number of threads.
"""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_drag as fd
from benchmarks.roofline import peak_flops, step_flops
from benchmarks.timing import Contestants, Row, Times, check_names, in_turn, ratio, warm_up
from benchmarks.workloads import Workload, select
from fedjax_drag.data import FederatedDataset
from fedjax_drag.data.batching import draw_positions, gather
from fedjax_drag.losses import cross_entropy
from fedjax_drag.simulation.program.programs import advance, no_totals
from fedjax_drag.types import Aggregator, Batch

CORES = ", mesh=cores"
RULES = {"fedavg": fd.aggregators.fedavg, "drag": fd.aggregators.drag}


def run(chosen: Sequence[str], repeats: int, options: Mapping[str, Any], only: Collection[str] = ()) -> list[Row]:
    """One row for each workload and contestant.

    Args:
      chosen: names of workloads; none: ``cnn`` and ``mlp``.
      repeats: timed calls of each contestant.
      options: further keyword arguments of :func:`fedjax_drag.simulation.prepare`.
      only: contestants to time beside bare; none: all of them.

    Raises:
      ValueError: an unknown workload or contestant.
    """
    check_names(only, names())
    return [row for work in select(chosen) for row in measure(work, repeats, options, {"bare", *(only or names())})]


def names() -> list[str]:
    """The contestants that can be timed on this machine."""
    meshes = ["", CORES] if jax.local_device_count() > 1 else [""]
    engine = [rule + mesh for rule in RULES for mesh in meshes]
    return ["bare", *engine, *(["torch"] if find_spec("torch") else [])]


def measure(work: Workload, repeats: int, options: Mapping[str, Any], chosen: Collection[str]) -> list[Row]:
    """The rows of one workload.

    Args:
      work: the setting.
      repeats: timed calls of each contestant.
      options: further keyword arguments of :func:`fedjax_drag.simulation.prepare`.
      chosen: contestants, of :func:`names`.
    """
    data = work.data()
    contestants: Contestants = {"bare": bare_steps(work, data)}
    for name in names():
        rule, mesh = RULES.get(name.removesuffix(CORES)), {"mesh": "cores"} if name.endswith(CORES) else {}
        if rule and name in chosen:
            contestants[name] = engine_rounds(work, data, rule(), {**options, **mesh}, work.rounds)
    warm_up(contestants)
    if "torch" in chosen:
        from benchmarks.torch_baseline import torch_device, torch_round

        sizes = work.cohort_size, work.local_steps, work.batch_size
        one_round = torch_round(work.model(), data, *sizes, torch_device())
        contestants["torch"] = lambda: [one_round() for _ in range(work.rounds)]
        contestants["torch"]()
    peak = peak_flops()
    times = in_turn(contestants, repeats, work.rounds)
    peak = max(peak, peak_flops())
    limit = 1e3 * work.steps * step_flops(work.model(), data.input_shape, work.batch_size) / peak
    return [_row(work, name, times, limit) for name in times]


def _row(work: Workload, name: str, times: Times, limit: float) -> Row:
    """One contestant; ``of_peak`` is the share of the hardware limit that it reaches."""
    ms = statistics.median(times[name])
    return {
        "workload": work.title,
        "program": name,
        "ms_per_round": ms,
        "client_steps_per_second": 1e3 * work.steps / ms,
        "ratio_to_bare": ratio(times, name, "bare"),
        "ratio_to_torch": ratio(times, name, "torch"),
        "of_peak": limit / ms,
    }


def engine_rounds(
    work: Workload, data: FederatedDataset, rule: Aggregator, options: Mapping[str, Any], rounds: int
) -> Callable[[], Any]:
    """A function that advances one run by ``rounds`` rounds and returns its state; the first call compiles."""
    algorithm = fd.algorithms.from_aggregator(rule)
    simulation = fd.simulation.prepare(algorithm, data=data, **(work.settings() | dict(options)))
    state = simulation.initial_state()

    def more_rounds() -> Any:
        nonlocal state
        stop = np.int32(int(state.round) + rounds)
        state, *_ = advance(simulation.inputs, state, no_totals(simulation.spec), stop)
        return jax.block_until_ready(state)

    return more_rounds


def bare_steps(work: Workload, data: FederatedDataset) -> Callable[[], Any]:
    """The local steps of a round on a single model, one after another."""
    assert data.rows is not None
    assert data.counts is not None
    model, loss = work.model(), cross_entropy()
    train = jax.tree.map(jnp.asarray, data.train)
    row, count = jnp.asarray(data.rows[0]), jnp.asarray(data.counts[0])
    params, key = model.init(jax.random.key(0), jnp.zeros((1, *data.input_shape)))["params"], jax.random.key(1)

    def loss_fn(params: Any, batch: Batch) -> Any:
        logits: Any = model.apply({"params": params}, batch.x)
        return loss(logits, batch.y).mean()

    @jax.jit
    def steps(params: Any, key: Any, train: Any) -> Any:
        def sgd(params: Any, places: Any) -> tuple[Any, None]:
            gradient = jax.grad(loss_fn)(params, gather(train, row, places, data.preprocess))
            return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), None

        return jax.lax.scan(sgd, params, draw_positions(key, count, work.steps, work.batch_size))[0]

    return lambda: [jax.block_until_ready(steps(params, key, train)) for _ in range(work.rounds)]
