"""STEM: recursive momentum in the clients' steps and in the server's."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import apply_screened
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, Params, State, Uplink


class Memory(NamedTuple):
    """What the next round of :func:`stem` starts from if momentum is carried.

    Attributes:
      momentum: mean of the clients' last directions, like ``params``, in gradient units.
      previous: the parameters that the last round started from.
      started: whether there was a round.
    """

    momentum: Params
    previous: Params
    started: jax.Array


class Message(NamedTuple):
    """What a client of :func:`stem` sends beside its delta.

    Attributes:
      step: ``eta v_{K-1}``, like ``params``, so that it has the unit of a delta.
      step_size: ``eta``, where momentum is carried in gradient units; else ``()``.
    """

    step: Params
    step_size: Any


class StemState(NamedTuple):
    """State of :func:`stem`.

    Attributes:
      aggregator: state of the aggregation rule.
      memory: a :class:`Memory` if momentum is carried, else ``()``.
    """

    aggregator: State
    memory: Any

    @property
    def metrics(self) -> dict[str, jax.Array]:
        """Those of the aggregation rule."""
        return self.aggregator.metrics


def stem(a: Any = 0.2, carry_momentum: bool = False, aggregator: Aggregator | None = None) -> Algorithm:
    """Reduces the variance of every local direction by the last one, and takes the last one once more at the server.

    ::

        client:  v_0 = grad(w_0, xi_0);   v_k = grad(w_k, xi_k) + (1 - a) (v_{k-1} - grad(w_{k-1}, xi_k))
                 w -= eta v_k,   k = 0 .. K-1
        server:  theta += mean g_m - eta mean v_{m,K-1}

    With ``carry_momentum`` a pass continues where the last round ended:
    ``v_0 = grad(theta, xi_0) + (1 - a) (mean v_{K-1} - grad(theta', xi_0))``, ``theta'`` the parameters that the last
    round started from. A step costs two gradients. With ``a = 1`` clients do plain SGD.

    Args:
      a: how much of the history is forgotten in a step, in [0, 1]. TACO's comparison: 0.2.
      carry_momentum: whether momentum goes from round to round, or ends with the local pass as in TACO's comparison.
      aggregator: rule that takes the place of the mean of ``g_m - eta v_{m,K-1}``, that is of the deltas each
        lengthened by the server's step; default :func:`~fedjax_drag.aggregators.fedavg`.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. The message ``aux`` is ``eta v_{K-1}``, and ``eta`` where momentum is
      carried. ``aggregator`` protects the round's parameters from both halves of the message, since it sees their
      difference; but what ``carry_momentum`` keeps is the plain mean of ``v_{K-1}`` over the clients that are not
      rejected: a malicious client can move it without bound, by either part of its ``aux``, and by it all clients'
      steps of the next round alike, which ``aggregator`` cannot tell. A client with a non-finite entry in either
      half is rejected whole.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Khanduri et al., STEM: A stochastic two-sided momentum algorithm achieving near-optimal sample and communication
      complexities for federated learning, 2021; in the form of TACO, Algorithm 1. Readings: TACO adds ``v``, a
      gradient, to a delta; here it is multiplied by ``eta``. In the original a round continues from each client's own
      last point; here from the last round's ``theta``, so that clients keep nothing and need not take part in
      every round.
    """
    checks.in_range("a", a, 0.0, 1.0)
    checks.one_of("carry_momentum", carry_momentum, (False, True))
    rule = aggregator or fedavg()

    def init(params):
        memory = Memory(tree.zeros_like(params), params, jnp.zeros((), bool)) if carry_momentum else ()
        return StemState(rule.init(params), memory)

    def broadcast(params, state, client_ids):
        del client_ids
        return Downlink(start=params, shared=state.memory)

    def begin(downlink):
        if carry_momentum:
            memory = downlink.shared
            return memory.previous, memory.momentum, memory.started, jnp.zeros((), jnp.int32)
        return downlink.start, tree.zeros_like(downlink.start), jnp.zeros((), bool), jnp.zeros((), jnp.int32)

    def direction(grad_fn, w, carry, downlink, batch):
        del downlink
        previous, v, remembers, steps = carry
        keep = (1 - a) * remembers  # before there is a direction to remember, v = grad
        v = jax.tree.map(
            lambda g, old, g_old: (g + keep * (old - g_old)).astype(g.dtype),
            grad_fn(w, batch),
            v,
            grad_fn(previous, batch),
        )
        return v, (w, v, jnp.ones((), bool), steps + 1)

    def report(downlink, w_end, carry, total_step_size):
        del downlink, w_end
        _, v, _, steps = carry
        step_size = total_step_size * tree.inverse(steps.astype(jnp.float32))
        step = jax.tree.map(lambda x: (step_size * x).astype(x.dtype), v)
        return Message(step, step_size if carry_momentum else ())

    def gradients(message):
        per_client = tree.inverse(message.step_size)
        return jax.tree.map(lambda x: x * tree.expand(per_client, x), message.step)

    def remember(params, v, counted, memory):
        average = jax.tree.map(lambda m, p: m.astype(p.dtype), tree.mean(v, counted), params)
        return tree.where(counted.any(), Memory(average, params, jnp.ones((), bool)), memory)

    def aggregate(params, uplink, state, **extras):
        lengthened = tree.subtract(uplink.delta, uplink.aux.step)
        v = gradients(uplink.aux) if carry_momentum else ()
        message = Uplink(lengthened, (uplink.aux.step_size, v))
        moved, inner, counted = apply_screened(rule, params, message, state.aggregator, **extras)
        memory = remember(params, v, counted, state.memory) if carry_momentum else ()
        return moved, StemState(inner, memory)

    client = ClientRule(begin, direction, report)
    return Algorithm(client, init, broadcast, aggregate, rule.needs, rule.split)
