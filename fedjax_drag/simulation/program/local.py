"""The one local pass: gradient steps on one client, for clients and for the server's root data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_drag import tree
from fedjax_drag.types import Batch, ClientRule, Downlink, Uplink


class LocalResult(NamedTuple):
    """What a local pass produces.

    Attributes:
      uplink: the client's message.
      loss: mean mini-batch loss over the pass (scalar).
      steps: local steps taken, int32 scalar.
    """

    uplink: Uplink
    loss: jax.Array
    steps: jax.Array


def local_pass(
    client: ClientRule,
    loss_fn: Callable[[Any, Batch], jax.Array],
    downlink: Downlink,
    fetch: Callable[[Any], Batch],
    drawn: Any,
    step_size: Any,
    real: jax.Array | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> LocalResult:
    """Runs ``w -= step_size * direction`` once for every mini-batch.

    Args:
      client: what the client computes.
      loss_fn: ``(params, batch) -> scalar``; of the batch's real examples.
      downlink: what the server sent to this client.
      fetch: from a mini-batch as it was drawn to the examples of this client.
      drawn: the mini-batches of the pass, such as places in the client's list ``[U, B]``; a pytree, leading ``[U]``.
      step_size: eta > 0.
      real: ``[U, B]`` bool, which of the examples count; default all. The pass ends before the first batch with none.
      optimizer: what turns a direction into the one that is followed; starts afresh. Default the direction itself.
    """

    def step(carry, one, counts):
        w, memory, trail = carry
        batch = fetch(one)
        if counts is not None:
            batch = batch._replace(real=counts)
        loss, gradient = jax.value_and_grad(loss_fn)(w, batch)

        def grad_fn(at, on):
            # The usual question is answered by what gave the loss: no second forward pass.
            return gradient if at is w and on is batch else jax.grad(loss_fn)(at, on)

        direction, memory = client.direction(grad_fn, w, memory, downlink, batch)
        if optimizer is not None:
            direction = jax.tree.map(lambda d, p: d.astype(p.dtype), direction, w)
            direction, trail = optimizer.update(direction, trail, w)
        w = jax.tree.map(lambda p, d: (p - step_size * d).astype(p.dtype), w, direction)
        return (w, memory, trail), loss

    trail = () if optimizer is None else optimizer.init(downlink.start)
    start = (downlink.start, client.begin(downlink), trail)
    if real is None:
        (w, memory, _), losses = jax.lax.scan(lambda carry, one: step(carry, one, None), start, drawn)
        num_steps = jax.tree.leaves(drawn)[0].shape[0]
    else:
        # A loop to the client's own end: among clients that run at once those that are done keep what they have.
        def own_step(index, carry):
            after, loss = step(carry[0], jax.tree.map(lambda x: x[index], drawn), real[index])
            return after, carry[1] + loss.astype(carry[1].dtype)

        num_steps = real.any(1).sum()
        (w, memory, _), losses = jax.lax.fori_loop(0, num_steps, own_step, (start, jnp.zeros(())))
    aux = client.report(downlink, w, memory, num_steps * jnp.asarray(step_size))
    uplink = Uplink(tree.subtract(w, downlink.start), aux)
    loss = losses.mean() if real is None else losses / num_steps
    return LocalResult(uplink, loss, jnp.asarray(num_steps, jnp.int32))
