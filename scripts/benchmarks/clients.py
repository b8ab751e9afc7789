"""Times the local steps of every method.

A contestant is 100 local steps of one client by itself, as the engine runs them; ratios are to the steps of FedAvg,
timed in turn.
"""

import statistics
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

import fedjax_drag as fd
from benchmarks.timing import Contestants, Row, in_turn, ratio, warm_up
from benchmarks.workloads import WORKLOADS
from fedjax_drag.data import FederatedDataset
from fedjax_drag.simulation.planning.outline import ClientCost
from fedjax_drag.simulation.program.programs import TIMED_STEPS, client
from fedjax_drag.types import Algorithm

STEPS = 100
COHORT = 4


def run(repeats: int) -> list[Row]:
    """One row for each method, on the LeNet workload."""
    work = WORKLOADS["lenet"]
    functions, costs = contestants(work.model(), work.data(), work.batch_size)
    warm_up(functions)
    times = in_turn(functions, repeats)
    return [
        {
            "method": name,
            "ms_per_100_steps": statistics.median(times[name]),
            "ratio_to_fedavg": ratio(times, name, "fedavg"),
            "gradients": str(cost.gradients),
            "vector_operations": str(cost.vector_operations),
            "KiB_down": cost.bytes_down / 1024,
            "KiB_up": cost.bytes_up / 1024,
        }
        for name, cost in costs.items()
    ]


def methods(num_clients: int) -> dict[str, Algorithm]:
    """Every method, with the hyperparameters of Liu et al. (TACO) where they give them."""
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


def contestants(model: nn.Module, data: FederatedDataset, batch_size: int) -> tuple[Contestants, dict[str, ClientCost]]:
    """By method, a function that takes :data:`STEPS` local steps, and their counted cost.

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
    inputs = simulation.inputs, simulation.initial_state()
    jax.block_until_ready(client(*inputs))
    return lambda: jax.block_until_ready([client(*inputs) for _ in range(STEPS // TIMED_STEPS)])
