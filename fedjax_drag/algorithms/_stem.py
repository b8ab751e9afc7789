"""STEM: recursive momentum in the clients' steps and in the server's."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.algorithms._two_sided import TwoSided, apply_screened
from fedjax_drag.types import Aggregator, Batch, Deltas, Downlink, GradFn, Params, Scalar, State, Uplink


class CarriedMomentum(NamedTuple):
    """Momentum from which the local passes of the next round of :func:`stem` continue.

    Attributes:
      momentum: mean of the clients' last directions, like ``params``, in gradient units.
      previous: the parameters before the last round.
      started: whether there was a round, bool scalar.
    """

    momentum: Params
    previous: Params
    started: jax.Array


class Message(NamedTuple):
    """What a client of :func:`stem` sends beside its delta.

    Attributes:
      step: ``eta v_{K-1}``, like ``params``, so that it has the unit of a delta.
      step_size: ``eta`` (scalar) if momentum is carried, in gradient units; else ``()``.
    """

    step: Params
    step_size: Any


class StemState(NamedTuple):
    """State of :func:`stem`.

    Attributes:
      aggregator: state of the aggregation rule.
      memory: a :class:`CarriedMomentum` if momentum is carried, else ``()``. Checkpoints name it so.
    """

    aggregator: State
    memory: Any

    @property
    def metrics(self) -> dict[str, jax.Array]:
        """Those of the aggregation rule."""
        return self.aggregator.metrics


class _Momentum(NamedTuple):
    """Of a local pass: the last point and direction, whether there was one, and the number of steps, int32."""

    previous: Params
    v: Params
    started: jax.Array
    steps: jax.Array


class stem(TwoSided):
    """Reduces the variance of each local direction by the previous one; the server steps once more along the last.

    ::

        client:  v_0 = grad(w_0, xi_0);   v_k = grad(w_k, xi_k) + (1 - a) (v_{k-1} - grad(w_{k-1}, xi_k))
                 w -= eta v_k,   k = 0 .. K-1
        server:  theta += mean g_m - eta mean v_{m,K-1}

    With ``carry_momentum`` a pass continues where the last round ended:
    ``v_0 = grad(theta, xi_0) + (1 - a) (mean v_{K-1} - grad(theta', xi_0))``, ``theta'`` the parameters before the
    last round. A step costs two gradients. With ``a = 1`` clients do plain SGD.

    Assumes steps of ``eta`` along ``v``. A ``local_optimizer``, its state kept or not, changes ``g_m`` alone: the
    recursion and the server's further step use ``v`` as it was before.

    Args:
      a: share of the history that a step drops, in [0, 1]. TACO's comparison: 0.2.
      carry_momentum: whether momentum goes from round to round, or ends with the local pass as in TACO's comparison.
      aggregator: rule that takes the place of the mean of ``g_m - eta v_{m,K-1}``, the deltas with the server's step
        added to each; default :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      The message ``aux`` is ``eta v_{K-1}``, and ``eta`` where momentum is carried. ``aggregator`` protects the round's
      parameters from both halves of the message, since it sees their difference. ``carry_momentum`` keeps the plain
      mean of ``v_{K-1}`` over the clients that are not rejected: a malicious client can move it without bound, by
      either part of its ``aux``, and by it the steps of all clients in the next round, in a direction common to all,
      which ``aggregator`` cannot detect. A client with a non-finite entry in either half is rejected whole.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Khanduri et al., STEM: A stochastic two-sided momentum algorithm achieving near-optimal sample and communication
      complexities for federated learning, 2021; in the form of TACO, Algorithm 1. Interpretations: TACO adds ``v``, a
      gradient, to a delta; here it is multiplied by ``eta``. In the original a round continues from each client's own
      last point; here from the last round's ``theta``, so that clients keep nothing and need not take part in
      every round.
    """

    a: Scalar = 0.2
    carry_momentum: bool = False
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("a", self.a, 0.0, 1.0)

    def init(self, params: Params) -> StemState:
        inner = self.rule.init(params)
        if not self.carry_momentum:
            return StemState(inner, ())
        previous = jax.tree.map(jnp.array, params)  # a copy: the caller may donate both
        return StemState(inner, CarriedMomentum(tree.zeros_like(params), previous, jnp.zeros((), bool)))

    def broadcast(self, params: Params, state: StemState, client_ids: jax.Array) -> Downlink:
        del client_ids
        return Downlink(start=params, shared=state.memory)

    def begin(self, downlink: Downlink) -> _Momentum:
        no_steps = jnp.zeros((), jnp.int32)
        if self.carry_momentum:
            carried: CarriedMomentum = downlink.shared
            return _Momentum(carried.previous, carried.momentum, carried.started, no_steps)
        return _Momentum(downlink.start, tree.zeros_like(downlink.start), jnp.zeros((), bool), no_steps)

    def direction(
        self, grad_fn: GradFn, w: Params, carry: _Momentum, downlink: Downlink, batch: Batch
    ) -> tuple[Params, _Momentum]:
        del downlink
        keep = (1 - self.a) * carry.started  # before the first direction, v = grad

        def recursive(g: jax.Array, v: jax.Array, g_previous: jax.Array) -> jax.Array:
            return (g + keep * (v - g_previous)).astype(g.dtype)

        v = jax.tree.map(recursive, grad_fn(w, batch), carry.v, grad_fn(carry.previous, batch))
        return v, _Momentum(w, v, jnp.ones((), bool), carry.steps + 1)

    def report(self, downlink: Downlink, w_end: Params, carry: _Momentum, total_step_size: jax.Array) -> Message:
        del downlink, w_end
        eta = total_step_size * tree.inverse(carry.steps.astype(jnp.float32))
        step = jax.tree.map(lambda v: (eta * v).astype(v.dtype), carry.v)
        return Message(step, eta if self.carry_momentum else ())

    def aggregate(self, params: Params, uplink: Uplink, state: StemState, **extras: Any) -> tuple[Params, StemState]:
        aux: Message = uplink.aux
        lengthened = tree.subtract(uplink.delta, aux.step)  # g_m - eta v_{m,K-1}
        v = _in_gradient_units(aux) if self.carry_momentum else ()
        message = Uplink(lengthened, (aux.step_size, v))
        moved, inner, counted = apply_screened(self.rule, params, message, state.aggregator, **extras)
        carried = _carried(params, v, counted, state.memory) if self.carry_momentum else ()
        return moved, StemState(inner, carried)


def _in_gradient_units(message: Message) -> Deltas:
    """``v_{K-1}`` of each client ``[S, *p]``."""
    per_unit = tree.inverse(message.step_size)
    return jax.tree.map(lambda x: x * tree.expand(per_unit, x), message.step)


def _carried(params: Params, v: Deltas, counted: jax.Array, before: CarriedMomentum) -> CarriedMomentum:
    """The mean of ``v_{K-1}`` for the next round; the one ``before`` if no client counts."""
    momentum = jax.tree.map(lambda m, p: m.astype(p.dtype), tree.mean(v, counted), params)
    return tree.where(counted.any(), CarriedMomentum(momentum, params, jnp.ones((), bool)), before)
