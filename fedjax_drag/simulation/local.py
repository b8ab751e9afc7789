"""The one local pass: a scan of gradient steps on one client, for clients and for the server's root data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.types import Batch, ClientRule, Downlink, Uplink


class LocalResult(NamedTuple):
    """What a local pass produces.

    Attributes:
      uplink: the client's message.
      loss: mean mini-batch loss over the pass (scalar).
    """

    uplink: Uplink
    loss: jax.Array


def local_pass(
    client: ClientRule,
    loss_fn: Callable[[Any, Batch], jax.Array],
    downlink: Downlink,
    fetch: Callable[[jax.Array], Batch],
    positions: jax.Array,
    step_size: Any,
) -> LocalResult:
    """Runs ``w -= step_size * direction`` once for every mini-batch.

    Args:
      client: what the client computes.
      loss_fn: ``(params, batch) -> scalar``.
      downlink: what the server sent to this client.
      fetch: ``(positions [B]) -> batch`` of this client's data.
      positions: ``[U, B]``, the mini-batches of the pass.
      step_size: eta > 0.
    """

    def step(carry, places):
        w, memory = carry
        batch = fetch(places)
        loss, gradient = jax.value_and_grad(loss_fn)(w, batch)

        def grad_fn(at, on):
            # The usual question is answered by what gave the loss: no second forward pass.
            return gradient if at is w and on is batch else jax.grad(loss_fn)(at, on)

        direction, memory = client.direction(grad_fn, w, memory, downlink, batch)
        w = jax.tree.map(lambda p, d: (p - step_size * d).astype(p.dtype), w, direction)
        return (w, memory), loss

    start = (downlink.start, client.begin(downlink))
    (w, memory), losses = jax.lax.scan(step, start, positions)
    aux = client.report(downlink, w, memory, positions.shape[0] * jnp.asarray(step_size))
    return LocalResult(Uplink(tree.subtract(w, downlink.start), aux), losses.mean())
