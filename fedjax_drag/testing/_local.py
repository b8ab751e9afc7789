"""Local passes of clients with quadratic losses, for checks without a model."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import tree
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.program import local
from fedjax_drag.simulation.run import ClientRows, LocalResult
from fedjax_drag.types import Batch, ClientRule, Downlink, Params, Uplink
from fedjax_drag.types._messages import client_params

STEPS, STEP_SIZE, BATCH = 2, 0.1, 4


def batches(clients: Sequence[int] | np.ndarray) -> Batch:
    """The mini-batches of clients, leading axes ``[S, U, B]``; those of a client do not depend on the others."""
    draws = [np.random.default_rng([3, int(client)]).normal(1, 1, (STEPS, BATCH, 2)) for client in clients]
    x = np.stack(draws).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.zeros(x.shape[:3], jnp.int32))


def loss(batch: Batch, w: Params) -> jax.Array:
    """A loss that is quadratic in ``w``, with its minimum at a multiple of the batch's mean input."""
    real = jnp.ones(batch.y.shape) if batch.real is None else batch.real.astype(jnp.float32)
    centre = (batch.x * real[..., None]).sum() / (jnp.maximum(real.sum(), 1) * batch.x.shape[-1])
    patterns = jax.tree.map(lambda p: jnp.linspace(-1.0, 1.0, p.size).reshape(p.shape), w)
    squares = jax.tree.map(lambda p, pattern: jnp.square(tree.accurate(p) - centre * pattern).sum(), w, patterns)
    return sum(jax.tree.leaves(squares), jnp.zeros(())) / 2


def beginning(rule: ClientRule, start: Params) -> Any:
    """Where a client begins: the parameters, with what it has for itself if there is anything."""
    return client_params(start, _own(rule, start))


def _own(rule: ClientRule, start: Params) -> Any:
    return rule.own(start, jax.tree.map(lambda _: None, start))  # no layer is personal


def passed(rule: ClientRule, downlink: Downlink, data: Batch, carry: Any = None) -> LocalResult:
    """A client's pass in the engine: a step on each mini-batch ``[U, B]``, going on with the carry that was kept."""
    keys = jax.random.split(jax.random.key(0), len(data.y)) if rule.keyed else None
    kept = ClientRows(() if carry is None else PerClient(carry, gathered=True))
    given = local.PassInput(keys=keys, own=_own(rule, downlink.start), kept=kept)
    step_loss = lambda w, statistics, batch, rngs, *_: (loss(batch, w), statistics)
    downlink = rule.receive(downlink, functools.partial(loss, data))
    return local.local_pass(rule, step_loss, downlink, lambda batch: batch, data, STEP_SIZE, given=given)


def local_pass(rule: ClientRule, downlink: Downlink, data: Batch) -> Uplink:
    """What a client sends."""
    uplink = passed(rule, downlink, data).uplink
    return rule.send(jax.random.key(1), uplink) if rule.sends else uplink


def cohort_pass(rule: ClientRule, downlink: Downlink, data: Batch) -> Uplink:
    """What a cohort sends, leading axis ``[S]``."""
    axes: Any = downlink._replace(start=None, shared=None, own=0)
    return jax.vmap(functools.partial(local_pass, rule), in_axes=(axes, 0))(downlink, data)
