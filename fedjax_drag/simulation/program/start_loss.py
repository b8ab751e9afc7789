"""The loss of some clients' training examples at the parameters that they receive, before a local step."""

import functools

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.data.batching import draw_positions
from fedjax_drag.selection import StartLoss
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.clients_axis import map_clients
from fedjax_drag.simulation.program.evaluation import EVALUATION_BATCH
from fedjax_drag.simulation.program.local import Drawn, fetch_batch
from fedjax_drag.simulation.run import ClientInput, RoundInput, Run


def losses_of(run: Run, shared: RoundInput, clients: ClientInput, batch_size: int | None = None) -> StartLoss:
    """The losses of clients, in evaluation: without augmentation, with the server's statistics of the model.

    The examples are those that a client trains on; an attack on data changes those of malicious clients here as well.

    Args:
      run: what is computed.
      shared: with the parameters, the start of its downlink.
      clients: leading axis of any length.
      batch_size: examples of each on which the loss is estimated; default all.
    """
    return map_clients(run.batching, run.mesh, functools.partial(_loss_of, run, batch_size), shared, clients)


def _loss_of(run: Run, batch_size: int | None, shared: RoundInput, own: ClientInput) -> StartLoss:
    number, longest, lots = own.num_examples, jax.tree.leaves(own.examples)[0].shape[0], None
    if batch_size is not None:
        key = sampling.client_key(shared.key, "candidate loss", shared.round, own.client_id)
        lots = draw_positions(key, number, 1, batch_size)[0]
        number, longest = jnp.int32(batch_size), batch_size
    size = min(EVALUATION_BATCH, longest)

    def add(index: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        places = index * size + jnp.arange(size)
        counted = (places < number).astype(jnp.float32)
        places = jnp.minimum(places, number - 1)
        batch = fetch_batch(run, shared, own, Drawn(places if lots is None else lots[places], None))
        loss = run.model.loss(run.model.apply(shared.downlink.start, shared.model, batch.x), batch.y)
        weights = run.model.weights(batch.y)
        weights = counted if weights is None else counted * weights
        new = (weights * loss).sum(), (weights * loss**2).sum(), weights.sum()
        return tuple(old + one for old, one in zip(sums, new, strict=True))

    loss, square, weight = jax.lax.fori_loop(0, -(-number // size), add, (jnp.zeros(()),) * 3)
    return StartLoss(loss * tree.inverse(weight), jnp.sqrt(square * tree.inverse(weight)))
