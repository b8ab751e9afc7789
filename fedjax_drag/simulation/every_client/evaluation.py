"""Evaluation of the global model on the examples that each client has held out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int

from fedjax_drag.data.batching import gather
from fedjax_drag.simulation.every_client.split import HeldOut
from fedjax_drag.simulation.model.model import Model, ModelState
from fedjax_drag.simulation.program.clients_axis import Walk, make_mapper
from fedjax_drag.simulation.program.evaluation import EVALUATION_BATCH
from fedjax_drag.types import Params

EvaluateClients = Callable[[Params, ModelState, Any, HeldOut, Any], dict[str, jax.Array]]
"""``(params, model_state, train, held_out, statistics) -> {"client_correct", "client_examples"}``, ``[M]`` int32 each;
``train`` is not used if ``held_out`` has the examples themselves, and ``statistics`` is None unless clients keep their
own."""


class Shared(NamedTuple):
    """What all batches read.

    Attributes:
      params: of the global model.
      state: of the model.
      train: training examples.
      held_out: which of them are held out.
      statistics: of every client's own model, ``[M, ...]``; None where the global model's are those of all.
      owner: the client that each of those belongs to, ``[H]`` int32.
    """

    params: Params
    state: ModelState
    train: Any
    held_out: HeldOut
    statistics: Any
    owner: Int[Array, " examples"]


def make_evaluate_clients(model: Model, mesh: Mesh | None = None) -> EvaluateClients:
    """Builds the evaluation of all clients: one pass over their examples, and one sum for each client.

    The batches are as long as those of the evaluation on the test set and may hold the examples of several clients.

    Args:
      model: whose predictions are counted.
      mesh: devices that share the batches, or None.
    """
    over_batches = make_mapper(Walk("map"), mesh)
    shares = mesh.size if mesh else 1

    def of_batch(shared: Shared, batch_index: Int[Array, ""]) -> Bool[Array, " batch"]:
        return _is_correct(model, shared, batch_index)

    def evaluate_clients(
        params: Params, state: ModelState, train: Any, held_out: HeldOut, statistics: Any
    ) -> dict[str, jax.Array]:
        counts = held_out.counts
        length = jax.tree.leaves(held_out.examples)[0].shape[0]
        owner = jnp.repeat(jnp.arange(counts.shape[0]), counts, total_repeat_length=length)
        num_batches = -(-length // (_batch_size(length) * shares)) * shares
        shared = Shared(params, state, train, held_out, statistics, owner)
        correct = over_batches(of_batch, shared, jnp.arange(num_batches))
        # Places after the last client's examples, in the last batch and in a padded list, do not count.
        correct = correct.reshape(-1)[:length] & (jnp.arange(length) < counts.sum())
        summed = jax.ops.segment_sum(correct.astype(jnp.int32), owner, counts.shape[0], indices_are_sorted=True)
        return {"client_correct": summed, "client_examples": counts}

    return evaluate_clients


def _batch_size(length: int) -> int:
    return min(EVALUATION_BATCH, length)


def _is_correct(model: Model, shared: Shared, batch_index: Int[Array, ""]) -> Bool[Array, " batch"]:
    """Whether the class of each example of a batch is predicted; places after the last example repeat it."""
    length = len(shared.owner)
    places = jnp.minimum(batch_index * _batch_size(length) + jnp.arange(_batch_size(length)), length - 1)
    batch = gather(shared.train, shared.held_out.examples, places, model.preprocess)
    return _logits(model, shared, shared.owner[places], batch.x).argmax(-1) == batch.y


def _logits(model: Model, shared: Shared, owner: Int[Array, " batch"], x: jax.Array) -> jax.Array:
    """What the model predicts for examples of the clients ``owner``, by their own statistics if they keep them."""
    if shared.statistics is None:
        return model.apply(shared.params, shared.state, x)

    def of_example(client: Int[Array, ""], x: jax.Array) -> jax.Array:
        own = jax.tree.map(lambda rows: rows[client], shared.statistics)
        return model.apply(shared.params, shared.state._replace(statistics=own), x[None])[0]

    return jax.vmap(of_example)(owner, x)
