"""Clients with quadratic losses, and what they send: local passes for tests without an engine."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from cases import NUM_CLIENTS, SIZE, assert_like, unflatten

from fedjax_drag.testing._local import beginning
from fedjax_drag.types import Batch, ClientParams, Uplink
from fedjax_drag.types._messages import shared_params

STEPS, STEP_SIZE = 2, 0.1


def stateless(loss_fn):
    """The loss ``(params, batch) -> scalar`` of a model without statistics and random streams, for ``local_pass``."""
    return lambda params, statistics, batch, rngs: (loss_fn(params, batch), statistics)


def gradient(w, batch):
    """Of a quadratic with its minimum at ``batch.y``; the examples are the same."""
    return jax.tree.map(lambda p, y: batch.x[0].astype(p.dtype) * (p - y[0].astype(p.dtype)), w, batch.y)


def through(rule, w, batch):
    """The gradient, with respect to all of a client's parameters, of the loss of the model that it trains."""
    if not isinstance(w, ClientParams):
        return gradient(w, batch)
    model, back = jax.vjp(rule.trained, w)
    return back(gradient(model, batch))[0]


def batches(seed=0):
    """One batch for each client of the federation: an example, twice."""
    rng = np.random.default_rng(seed)
    curvature = jnp.asarray(rng.uniform(0.5, 2, NUM_CLIENTS), jnp.float32)
    once = Batch(curvature, unflatten(rng.normal(size=(NUM_CLIENTS, SIZE))))
    return jax.tree.map(lambda x: jnp.stack([x, x], axis=1), once)


def local_pass(rule, downlink, batch):
    """What one client sends."""
    downlink = rule.receive(downlink, lambda w: sum(jnp.abs(g).sum() for g in jax.tree.leaves(gradient(w, batch))))
    w, carry = beginning(rule, downlink.start), rule.begin(downlink)
    for _ in range(STEPS):
        direction, after = rule.direction(functools.partial(through, rule), w, carry, downlink, batch)
        assert jax.tree.structure(after) == jax.tree.structure(carry)
        assert_like(direction, w)
        carry = after
        w = jax.tree.map(lambda p, d: p - STEP_SIZE * d, w, direction)
    aux = rule.report(downlink, w, carry, jnp.float32(STEPS * STEP_SIZE))
    return Uplink(jax.tree.map(jnp.subtract, shared_params(w), rule.origin(downlink)), aux)


def uplink_of(method, params, state, ids, data):
    """What the cohort sends, by ``vmap`` over ``own``."""
    downlink = method.broadcast(params, state, ids)
    axes = downlink._replace(start=None, shared=None, own=0)
    rows = jax.tree.map(lambda x: x[ids], data)
    return jax.vmap(functools.partial(local_pass, method.client), in_axes=(axes, 0))(downlink, rows)
