"""Times the local steps of every method; run by ``scripts/benchmark.py --clients``.

A contestant is 100 local steps of one client by itself, as the engine runs them; ratios are to those of FedAvg,
measured in turn.
"""

import statistics
from collections.abc import Callable
from typing import Any

import jax

import fedjax_drag as fd
from fedjax_drag.simulation.cost import ClientCost
from fedjax_drag.simulation.programs import TIMED_STEPS

STEPS = 100
COHORT = 4


def methods(num_clients: int) -> dict[str, Any]:
    """With the settings of Liu et al., TACO, where it has them."""
    plain, a = fd.algorithms.from_aggregator, fd.algorithms
    fedavg = fd.aggregators.fedavg()
    return {
        "fedavg": plain(fedavg),
        "fedprox": plain(fedavg, client=fd.clients.fedprox(0.1)),
        "scaffold": a.scaffold(num_clients),
        "fedacg": a.fedacg(lam=0.85, beta=0.001),
        "taco": a.taco(num_clients),
        "adabest": a.adabest(num_clients),
        "feddyn": a.feddyn(num_clients, a=0.1),
        "feddc": a.feddc(num_clients),
        "fednova": a.fednova(),
        "stem": a.stem(),
        "fedsam": plain(fedavg, client=fd.clients.fedsam(0.05)),
        "mime": a.mime(),
    }


def contestants(model: Any, data: Any, batch_size: int) -> tuple[dict[str, Callable[[], Any]], dict[str, ClientCost]]:
    """Functions that take :data:`STEPS` local steps, and what they cost by the count, by method.

    Args:
      model: a Flax module.
      data: a partitioned data set.
      batch_size: B.
    """
    functions, costs = {}, {}
    for name, algorithm in methods(data.num_clients).items():
        simulation = fd.simulation.prepare(
            algorithm,
            model=model,
            data=data,
            num_rounds=1,
            cohort_size=COHORT,
            local_steps=TIMED_STEPS,
            batch_size=batch_size,
            step_size=0.01,
        )
        functions[name], costs[name] = local_steps(simulation), simulation.cost
    return functions, costs


def local_steps(simulation: fd.simulation.Simulation) -> Callable[[], Any]:
    """A compiled function that takes :data:`STEPS` local steps of one client by itself."""
    inputs = simulation.federation, simulation.key, simulation.initial_state()
    program = jax.jit(simulation.programs.client).lower(*inputs).compile()
    return lambda: jax.block_until_ready([program(*inputs) for _ in range(STEPS // TIMED_STEPS)])


def rows(times: dict[str, list[float]], costs: dict[str, ClientCost]) -> list[dict[str, Any]]:
    """One row for each method, from its milliseconds."""
    return [
        {
            "method": name,
            "ms_per_100_steps": statistics.median(taken),
            "ratio_to_fedavg": statistics.median(a / b for a, b in zip(taken, times["fedavg"], strict=True)),
            "gradients": str(costs[name].gradients),
            "vector_operations": str(costs[name].vector_operations),
            "KiB_down": costs[name].bytes_down / 1024,
            "KiB_up": costs[name].bytes_up / 1024,
        }
        for name, taken in times.items()
    ]
