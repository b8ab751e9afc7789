"""Whether a run gains from sharing its clients among the devices of a CPU: what ``mesh="auto"`` means.

Devices of one CPU wait for each other in every round, some milliseconds where the messages are added up, and tens of
milliseconds where an iterative rule works on the stack of them. Sharing also takes seconds longer to compile. Rounds
that compute for long, in runs of half a minute or more, save a quarter of their time or more with two cores
(``docs/benchmarks.md``). How long they compute is estimated from the operations of a local step, to an order of
magnitude: nothing is timed, and the same run is shared on every machine that has the devices.
"""

from typing import Any

import jax
import jax.numpy as jnp
import psutil
from jax.sharding import Mesh

from fedjax_drag.data.batching import gather
from fedjax_drag.simulation.devices.placement import can_share, resolve_mesh
from fedjax_drag.simulation.planning.outline import by_shape
from fedjax_drag.simulation.planning.setup import steps_of_clients
from fedjax_drag.simulation.program.client_pass import batch_length
from fedjax_drag.simulation.run import Run
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch

SHORTEST_ROUND = {"stream": 0.01, "stack": 0.1}
"""Seconds of local work below which a round is not worth sharing, by what the server does with the messages."""

SHORTEST_RUN = 30.0
"""Seconds of local work below which a run is not worth sharing."""

FEWEST_STEPS = 100
"""Local steps of a run below which it is not worth an estimate, which traces one of them."""

MOST_OF_MEMORY = 0.25
"""Share of the machine's memory that the copies of the examples, one for each device, may take."""

_TO_START, _PER_SECOND = 2e-5, 5e10  # seconds to start a step, FLOPs per second of a core: orders of magnitude


def mesh_of(asked: Settings, run: Run) -> Mesh | None:
    """The devices that share the clients; None for one device.

    Args:
      asked: of the run.
      run: the same without a mesh.
    """
    mesh = asked.mesh
    if mesh == "auto" and not asked.shard_data and can_share(asked.cohort_size):
        mesh = "cores" if is_worthwhile(asked, run) else None
    return resolve_mesh(mesh, asked.cohort_size)


def is_worthwhile(asked: Settings, run: Run) -> bool:
    """Whether the local work of a run is long enough to be shared among the cores."""
    examples = jax.tree.leaves((asked.data.train, asked.data.test))
    if jax.local_device_count() * sum(x.nbytes for x in examples) > MOST_OF_MEMORY * psutil.virtual_memory().total:
        return False
    steps = asked.cohort_size * float(steps_of_clients(asked).mean())  # of a round
    if steps * asked.num_rounds < FEWEST_STEPS:
        return False
    rows = asked.split.training.rows
    assert rows is not None
    of_round = steps * (_TO_START + _operations(run, asked.data.train, rows) / _PER_SECOND)
    shortest = SHORTEST_ROUND["stream" if run.streams else "stack"]
    return of_round >= shortest and of_round * asked.num_rounds >= SHORTEST_RUN


@by_shape
def _operations(run: Run, train: Batch, rows: Any) -> float:
    """Floating-point operations of the gradient on a mini-batch."""

    def step(run: Run, train: Batch, rows: Any) -> Any:
        params, state = run.model.init(jax.random.key(0))
        batch = gather(train, rows[0], jnp.zeros(batch_length(run, rows.shape[1]), jnp.int32), run.model.preprocess)
        rngs = dict.fromkeys(run.model.streams, jax.random.key(0))
        return jax.grad(lambda w: run.model.training_loss(state, w, state.statistics, batch, rngs)[0])(params)

    return (jax.jit(step).lower(run, train, rows).cost_analysis() or {}).get("flops", 0.0)
