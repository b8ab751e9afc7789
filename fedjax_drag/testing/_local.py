"""Local passes of clients with quadratic losses, for checks without a model."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import tree
from fedjax_drag.testing._promises import assert_like
from fedjax_drag.types import Batch, ClientParams, ClientRule, Downlink, GradFn, Params, Uplink
from fedjax_drag.types._messages import client_params, shared_params

STEPS, STEP_SIZE, BATCH = 2, 0.1, 4


def batches(clients: Sequence[int] | np.ndarray) -> Batch:
    """The mini-batches of clients, leading axes ``[S, U, B]``; those of a client do not depend on the others."""
    draws = [np.random.default_rng([3, int(client)]).normal(1, 1, (STEPS, BATCH, 2)) for client in clients]
    x = np.stack(draws).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.zeros(x.shape[:3], jnp.int32))


def gradient(w: Params, batch: Batch, /) -> Params:
    """The gradient of a loss that is quadratic in ``w``, with its minimum at a multiple of the batch's mean input."""
    real = jnp.ones(batch.y.shape) if batch.real is None else batch.real.astype(jnp.float32)
    centre = (batch.x * real[..., None]).sum() / (jnp.maximum(real.sum(), 1) * batch.x.shape[-1])

    def leaf(p: Any) -> jax.Array:
        pattern = jnp.linspace(-1.0, 1.0, p.size).reshape(p.shape)
        return (p - centre * pattern).astype(p.dtype)

    return jax.tree.map(leaf, w)


def loss(data: Batch, w: Params, /) -> jax.Array:
    """The loss over all mini-batches ``[U, B]`` whose gradient is :func:`gradient`, up to a constant."""
    slopes = gradient(w, Batch(data.x.reshape(-1, data.x.shape[-1]), data.y.reshape(-1)))
    return sum((jnp.square(tree.accurate(slope)).sum() for slope in jax.tree.leaves(slopes)), jnp.zeros(())) / 2


def beginning(rule: ClientRule, start: Params) -> Any:
    """Where a client begins: the parameters, with what it has for itself if there is anything; no layer is personal."""
    return client_params(start, rule.own(start, jax.tree.map(lambda _: None, start)))


def through(rule: ClientRule, gradient: GradFn) -> GradFn:
    """The gradient, with respect to all of a client's parameters, of the loss of the model that it trains."""

    def at(w: Any, batch: Batch, /) -> Any:
        if not isinstance(w, ClientParams):
            return gradient(w, batch)
        model, back = jax.vjp(rule.trained, w)
        return back(gradient(model, batch))[0]

    return at


def step(rule: ClientRule, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
    """Parameters and carry after a local step.

    Raises:
      AssertionError: what ``direction`` returns is no pair, or not like the parameters and the carry.
    """
    keyed: dict[str, Any] = {"key": jax.random.key(0)} if rule.keyed else {}
    returned: Any = rule.direction(through(rule, gradient), w, carry, downlink, batch, **keyed)
    pair = isinstance(returned, tuple) and len(returned) == 2
    assert pair, f"direction returns {type(returned).__name__}: must be a pair (direction, carry)"
    assert_like("direction returns a direction", returned[0], w)
    assert_like("direction returns a carry", returned[1], carry)
    return jax.tree.map(lambda p, d: (p - STEP_SIZE * d).astype(p.dtype), w, returned[0]), returned[1]


def local_pass(rule: ClientRule, downlink: Downlink, data: Batch, loop: bool = False) -> Uplink:
    """What a client sends after a step on each mini-batch ``[U, B]``; by a Python loop or by a scan."""
    steps = jax.tree.leaves(data)[0].shape[0]
    downlink = rule.receive(downlink, functools.partial(loss, data))._replace(num_steps=steps)
    w, carry = beginning(rule, downlink.start), rule.begin(downlink)
    if loop:
        for index in range(steps):
            w, carry = step(rule, w, carry, downlink, jax.tree.map(lambda x, i=index: x[i], data))
    else:

        def turn(position: tuple[Params, Any], batch: Batch) -> tuple[tuple[Params, Any], None]:
            return step(rule, *position, downlink, batch), None

        (w, carry), _ = jax.lax.scan(turn, (w, carry), data)
    aux = rule.report(downlink, w, carry, jnp.float32(steps * STEP_SIZE))
    uplink = Uplink(tree.subtract(shared_params(w), rule.origin(downlink)), aux)
    return rule.send(jax.random.key(1), uplink) if rule.sends else uplink


def cohort_pass(rule: ClientRule, downlink: Downlink, data: Batch) -> Uplink:
    """What a cohort sends, leading axis ``[S]``."""
    axes: Any = downlink._replace(start=None, shared=None, own=0)
    return jax.vmap(functools.partial(local_pass, rule), in_axes=(axes, 0))(downlink, data)
