"""The evaluation of every client's own model, on the client's own held-out examples."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_drag import per_client, tree
from fedjax_drag.clients import sgd
from fedjax_drag.data.batching import gather
from fedjax_drag.simulation.devices.model_sharding import num_shares
from fedjax_drag.simulation.model.model import ModelState
from fedjax_drag.simulation.program.clients_axis import ClientBatching, map_clients
from fedjax_drag.simulation.program.evaluation import EVALUATION_BATCH, summed
from fedjax_drag.simulation.program.federation import HeldOut
from fedjax_drag.simulation.program.keys import stream
from fedjax_drag.simulation.program.local import client_pass, step_size_of
from fedjax_drag.simulation.run import ClientInput, Inputs, RoundInput, Run, RunState
from fedjax_drag.types import Adaptation, Downlink, Params

OWN = "own_"
"""What the names of metrics of clients' own models begin with."""


def evaluate_own_models(inputs: Inputs, state: RunState, client_ids: Int[Array, " clients"]) -> dict[str, jax.Array]:
    """The model's metrics of each client's own model.

    Clients run as many at a time as in a round.

    Args:
      inputs: of a run whose method has own models, with held-out examples.
      state: with the rows of all clients, or of these alone.
      client_ids: whose models, ``[N]``.

    Returns:
      ``own_<metric>`` ``[N]`` for each metric of the model that is one of clients, NaN where a client has no example.
    """
    run, federation, key = inputs
    own_model, adaptation = run.algorithm.own_model, run.algorithm.adaptation
    assert own_model is not None
    assert federation.evaluated is not None
    examples, held_out = federation.evaluated
    trains_on = () if adaptation is None else federation
    own = run.algorithm.owned(state.algorithm, state.clients.own)
    kept = per_client.gather(state.clients._replace(own=own), client_ids)
    rows = [per_client.rows_or(node, tuple) for node in (kept.own, kept.statistics)]
    padding = -len(client_ids) % num_shares(run.mesh)  # the devices divide the clients

    def padded(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, x[:padding]]) if padding else x

    def one(shared: Any, entry: tuple[Any, Any, Any]) -> tuple[Any, ...]:
        trains_on, examples, held_out, begins, key, state = shared
        client, own, statistics = entry
        model = state.model._replace(statistics=statistics) if jax.tree.leaves(statistics) else state.model
        params = own_model(state.params, own)
        if adaptation is not None:
            adapts = stream(key, "adaptation")
            shared = RoundInput(trains_on, adapts, state.round, Downlink(params), model, state.attack)
            params = _adapted(run, adaptation, shared, client)
        places = begins[client], held_out.counts[client]
        return _metrics(run, examples, held_out, params, model, *places)

    begins = jnp.cumsum(held_out.counts) - held_out.counts
    shared = trains_on, examples, held_out, begins, key, per_client.without_rows(state)
    entries = jax.tree.map(padded, (client_ids, *rows))
    values = map_clients(_as_many_as_in_a_round(run, len(client_ids) + padding), run.mesh, one, shared, entries)
    names = [f"{OWN}{metric.name}" for metric in run.model.metrics if metric.of_clients]
    return {name: value[: len(client_ids)] for name, value in zip(names, values, strict=True)}


def _as_many_as_in_a_round(run: Run, number: int) -> ClientBatching:
    shares = num_shares(run.mesh)
    at_once = run.cohort_size // shares if run.batching.clients_axis == "vmap" else run.batching.clients_per_chunk or 1
    return ClientBatching("map", min(at_once, number // shares))


def _adapted(run: Run, adaptation: Adaptation, shared: RoundInput, client: Int[Array, ""]) -> Params:
    """The parameters of a client, which are the start of the downlink, after its steps on its training examples."""
    changes: dict[str, Any] = {"local_steps": adaptation.steps, "local_epochs": None, "fewest": None, "deadline": None}
    evaluated = jnp.maximum(shared.round - 1, 0)
    changes["step_size"] = step_size_of(run, evaluated) if adaptation.step_size is None else adaptation.step_size
    alone = dataclasses.replace(run, attack=None, local_optimizer=None, **changes)
    federation, params = shared.federation, shared.downlink.start
    own = ClientInput(client, federation.rows[client], federation.counts[client], jnp.zeros((), bool))
    return tree.add(params, client_pass(alone, sgd(), shared, own).uplink.delta)


def _metrics(
    run: Run, examples: Any, held_out: HeldOut, params: Params, model: ModelState, begin: Any, number: Any
) -> tuple[Any, ...]:
    """The metrics of a model on the ``number`` held-out examples from ``begin`` on, batch by batch."""
    metrics = [metric for metric in run.model.metrics if metric.of_clients]
    length = len(held_out.examples)
    size = min(EVALUATION_BATCH, -(-length // run.num_clients))  # about what a client has

    def of_batch(index: Any) -> tuple[Any, ...]:
        offset = index * size + jnp.arange(size)
        places = jnp.minimum(begin + offset, length - 1)
        batch = gather(examples, held_out.examples, places, run.model.preprocess)
        outputs = run.model.apply(params, model, batch.x)
        return tuple(summed(metric.update(outputs, batch.y), offset < number) for metric in metrics)

    zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(of_batch, jnp.int32(0)))
    add = lambda index, sums: jax.tree.map(jnp.add, sums, of_batch(index))
    sums = jax.lax.fori_loop(0, -(-number // size), add, zeros)
    return tuple(metric.result(own) for metric, own in zip(metrics, sums, strict=True))
