"""Times a federated round against the same local steps without a federation, and against PyTorch.

    python scripts/benchmark.py                     # all workloads
    python scripts/benchmark.py cnn mlp --repeats 9 --json benchmark.json
    python scripts/benchmark.py --aggregators       # every aggregation rule alone, against one pass over the deltas
    python scripts/benchmark.py --aggregators drag median
    python scripts/benchmark.py --clients           # what each method's correction costs a client

Every row is measured in one process, the contestants in turn, and ratios are medians over the turns:

- bare: S x U SGD steps on one model in one compiled scan, fetching batches as the engine does;
- fedavg, drag: a whole round, from the cohort to the new global parameters, without evaluation, on one device and
  with the clients sharded over one device for each core;
- torch (if installed): the plain loop over clients with the same arithmetic on as many threads.
"""

import dataclasses
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import aggregator_benchmark
import client_benchmark
import jax
import jax.numpy as jnp
import numpy as np
import typer
from tqdm import tqdm

import fedjax_drag as fd
from fedjax_drag.data.batching import draw_positions, gather
from fedjax_drag.losses import cross_entropy
from fedjax_drag.simulation.programs import no_totals


@dataclasses.dataclass(frozen=True)
class Workload:
    """One federated setting: a model on 28 x 28 images and the size of a round."""

    title: str
    model: Callable[[], Any]
    cohort_size: int
    local_steps: int
    batch_size: int


WORKLOADS = {
    "cnn": Workload("CNN, S=10 U=5 B=10", lambda: fd.models.cnn(num_classes=10), 10, 5, 10),
    "mlp": Workload("MLP 784-500-10, S=40 U=5 B=10", lambda: fd.models.mlp(num_classes=10), 40, 5, 10),
    "lenet": Workload("LeNet, S=20 U=100 B=64", lambda: fd.models.lenet(num_classes=10), 20, 100, 64),
}
ROUNDS = 3
"""Rounds of each timed call, as in a run, where memory is laid out once for the rounds between evaluations."""
RULES = {"fedavg": fd.aggregators.fedavg, "drag": fd.aggregators.drag}


def federated_data() -> Any:
    """Random images, 150 on each of 40 clients: the arithmetic does not depend on what they show."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6000, 28, 28, 1), dtype=np.uint8)
    y = rng.integers(0, 10, 6000).astype(np.int32)
    data = fd.data.from_arrays(x, y, x[:100], y[:100], num_classes=10, name="random")
    return fd.data.partition.iid(data, num_clients=40)


def engine_round(work: Workload, data: Any, rule: Callable[[], Any], options: dict[str, Any]) -> Callable[[], None]:
    """A function that runs ROUNDS more rounds each time it is called."""
    simulation = fd.simulation.prepare(
        fd.algorithms.from_aggregator(rule()),
        model=work.model(),
        data=data,
        num_rounds=10**6,
        cohort_size=work.cohort_size,
        local_steps=work.local_steps,
        batch_size=work.batch_size,
        step_size=0.01,
        **options,
    )
    advance = simulation.lowered.advance.compile()
    state = simulation.initial_state()

    def rounds() -> None:
        nonlocal state
        stop = np.int32(int(state.round) + ROUNDS)
        state, *_ = advance(simulation.federation, simulation.key, state, no_totals(), stop)
        jax.block_until_ready(state)

    return rounds


def bare_steps(work: Workload, data: Any) -> Callable[[], None]:
    """The local steps of a round on a single model, one after another."""
    model = work.model()
    train = jax.tree.map(jnp.asarray, data.train)
    loss = cross_entropy()
    row, count = jnp.asarray(data.rows[0]), jnp.asarray(data.counts[0])

    def loss_fn(params, batch):
        return loss(model.apply({"params": params}, batch.x), batch.y).mean()

    @jax.jit
    def steps(params, key, train):
        positions = draw_positions(key, count, work.cohort_size * work.local_steps, work.batch_size)

        def step(w, places):
            gradient = jax.grad(loss_fn)(w, gather(train, row, places, data.preprocess))
            return jax.tree.map(lambda p, g: p - 0.01 * g, w, gradient), None

        return jax.lax.scan(step, params, positions)[0]

    params = model.init(jax.random.key(0), jnp.zeros((1, *data.input_shape)))["params"]
    key = jax.random.key(1)

    def rounds() -> None:
        for _ in range(ROUNDS):
            jax.block_until_ready(steps(params, key, train))

    return rounds


def in_turn(contestants: dict[str, Callable[[], Any]], repeats: int, parts: int = ROUNDS) -> dict[str, list[float]]:
    """Milliseconds for one of a call's ``parts``, of each contestant, ``repeats`` times in turn, after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    for _ in tqdm(range(repeats), leave=False, disable=None):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - started) / parts)
    return times


def peak_memory() -> float:
    """Largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(work: Workload, repeats: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each contestant."""
    data = federated_data()
    contestants: dict[str, Callable[[], Any]] = {"bare": bare_steps(work, data)}
    for name, rule in RULES.items():
        contestants[name] = engine_round(work, data, rule, options)
        if jax.local_device_count() > 1:
            contestants[f"{name}, mesh=cores"] = engine_round(work, data, rule, options | {"mesh": "cores"})
    in_turn(contestants, 1)
    memory = peak_memory()  # before torch is imported
    if find_spec("torch"):
        from torch_baseline import torch_round

        one_round = torch_round(work.model(), data, work.cohort_size, work.local_steps, work.batch_size)
        contestants["torch"] = lambda: [one_round() for _ in range(ROUNDS)]
    times = in_turn(contestants, repeats)

    def ratio(name, base):
        if base not in times:
            return None
        return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))

    steps = work.cohort_size * work.local_steps
    return [
        {
            "workload": work.title,
            "program": name,
            "ms_per_round": statistics.median(taken),
            "client_steps_per_second": 1e3 * steps / statistics.median(taken),
            "ratio_to_bare": ratio(name, "bare"),
            "ratio_to_torch": ratio(name, "torch"),
            "peak_memory_mib": None if name == "torch" else memory,
        }
        for name, taken in times.items()
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""

    def cell(value):
        return (
            ""
            if value is None
            else value
            if isinstance(value, str)
            else f"{value:,.2f}"
            if value < 100
            else f"{value:,.0f}"
        )

    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([cell(row[name]) for name in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(help=f"Of {', '.join(WORKLOADS)}, default cnn and mlp; with --aggregators, of the rules."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed calls of each contestant.", min=1)] = 9,
    clients_axis: Annotated[str, typer.Option(help="auto, vmap or map.")] = "auto",
    clients_per_chunk: Annotated[int | None, typer.Option(help="Clients that run at once under map.")] = None,
    cores: Annotated[bool, typer.Option(help="Make each core a device, and also shard the clients over them.")] = True,
    aggregators: Annotated[bool, typer.Option("--aggregators", help="Time the aggregation rules instead.")] = False,
    clients: Annotated[bool, typer.Option("--clients", help="Time the local steps of the methods instead.")] = False,
    memory_gib: Annotated[float | None, typer.Option(help="Memory that --aggregators may use; default all.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
) -> None:
    """Times a federated round against the bare local steps and against PyTorch."""
    if cores and not (aggregators or clients):
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    options = {"clients_axis": clients_axis, "clients_per_chunk": clients_per_chunk}
    rows: list[dict[str, Any]] = []
    if aggregators:
        try:
            rows = aggregator_benchmark.run(workloads or [], repeats, memory_gib)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    elif clients:
        model, data = WORKLOADS["lenet"].model(), federated_data()
        contestants, costs = client_benchmark.contestants(model, data, WORKLOADS["lenet"].batch_size)
        rows = client_benchmark.rows(in_turn(contestants, repeats, parts=1), costs)
    else:
        for name in workloads or ["cnn", "mlp"]:
            if name not in WORKLOADS:
                raise typer.BadParameter(f"{name!r}: must be one of {', '.join(WORKLOADS)}")
            rows += measure(WORKLOADS[name], repeats, options)
    device = jax.devices()[0]
    print(f"jax {jax.__version__}, {device.device_kind}, {os.cpu_count()} cores, median of {repeats}\n\n{table(rows)}")
    print(f"\nPeak memory of the process: {peak_memory():,.0f} MiB")
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
