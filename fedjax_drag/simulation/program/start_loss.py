"""The loss of some clients' training examples at the parameters that they receive, before a local step."""

import functools

import jax.numpy as jnp

from fedjax_drag.data.batching import draw_positions
from fedjax_drag.selection import StartLoss
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.clients_axis import map_clients
from fedjax_drag.simulation.program.examples import loss_moments
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
    shared, drawn = shared.seen_by(own), None
    if batch_size is not None:
        key = sampling.client_key(shared.key, "candidate loss", shared.round, own.client_id)
        drawn = draw_positions(key, own.num_examples, 1, batch_size)[0]
    mean, square = loss_moments(run, shared, own, shared.downlink.start, drawn)
    return StartLoss(mean, jnp.sqrt(square))
