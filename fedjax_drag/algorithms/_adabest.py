"""AdaBest: client corrections that fade while a client is away, and a server correction without a history."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import server_side
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, Params, State


class AdaBestState(NamedTuple):
    """State of :func:`adabest`.

    Attributes:
      aggregator: state of the aggregation rule, its metrics apart.
      average: the last round's ``theta_bar``, like ``params``; ``theta_0`` before the first round.
      correction: the server's correction ``h``, like ``params``.
      client_corrections: ``h_m``, ``[M, *p]``.
      last_rounds: ``t_m``, the last round that each client took part in, int32 ``[M]``; -1 before its first.
      metrics: those of the aggregation rule, and the norm of the server's correction.
    """

    aggregator: State
    average: Params
    correction: Params
    client_corrections: PerClient
    last_rounds: jax.Array
    metrics: dict[str, jax.Array]


def adabest(num_clients: int, mu: Any = 0.02, beta: Any = 0.8, aggregator: Aggregator | None = None) -> Algorithm:
    """Corrects local steps by the client's past deltas and the server's step by the change of the average.

    ::

        client:  w -= eta (grad f_m(w) - h_m);   h_m <- h_m / (t - t_m) - mu g_m;   t_m <- t
        server:  theta_bar = theta + mean g_m;   h = beta (theta_bar_prev - theta_bar);   theta = theta_bar - h

    The corrections start at zero, so that a client's first participation leaves ``h_m = -mu g_m``, and
    ``theta_bar_prev`` at ``theta_0``. With ``mu = beta = 0`` the parameters are those of the plain aggregation rule.

    Where all clients take part in every round, a fixed point is no stationary point of the objective ``F``, but one
    of ``F(theta) + mu (1 - beta) / 2 ||theta - theta_0||^2``.

    Args:
      num_clients: M, clients in the federation; the state holds one correction for each.
      mu: strength of the clients' correction, >= 0. Paper of DRAG: 0.02.
      beta: strength of the server's correction, in [0, 1]. Paper of DRAG: 0.8 for EMNIST, 0.2 for CIFAR-10.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`. ``theta_bar`` is where it leads.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. It needs the extra ``round``. Metrics: those of ``aggregator``, and
      the scalar ``correction_norm`` ``||h||``. There is no message ``aux``: a client's delta changes its own row of
      the state, and everything that is shared through ``aggregator`` only. It sums as
      deltas come if ``aggregator`` can, and then keeps nothing of each client but its row of the state.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Varno et al., AdaBest: Minimizing client drift in federated learning via adaptive bias estimation, 2022;
      settings of Zhu et al., DRAG: Divergence-based adaptive aggregation in federated learning on non-IID data,
      Section VI. **[reading]** ``t - t_m`` counts rounds whose message was counted: a rejected client's ``t_m``
      stays as well. ``mu`` is the same for all clients; its authors' code scales it by each client's number of
      examples.
    """
    checks.count("num_clients", num_clients, 1)
    checks.in_range("mu", mu, 0.0)
    checks.in_range("beta", beta, 0.0, 1.0)
    rule = aggregator or fedavg()

    def init(params):
        rows = per_client.zeros(params, num_clients)
        inner = rule.init(params)
        metrics = {**inner.metrics, "correction_norm": jnp.zeros(())}
        average = jax.tree.map(jnp.array, params)  # a copy: the caller may donate both
        return AdaBestState(
            inner._replace(metrics={}),
            average,
            tree.zeros_like(params),
            rows,
            jnp.full(num_clients, -1, jnp.int32),
            metrics,
        )

    def broadcast(params, state, client_ids):
        return Downlink(start=params, own=state.client_corrections.take(client_ids))

    def direction(grad_fn, w, carry, downlink, batch):
        return tree.subtract(grad_fn(w, batch), downlink.own), carry

    def own(uplink, state, counted, *, client_ids, round, **_):
        del counted
        # No round has passed between a client's first message and a zero row; the same round again counts as one.
        fade = 1 / tree.accurate(jnp.maximum(round - state.last_rounds[client_ids], 1))

        def updated(h_m, g):
            return tree.expand(fade, g) * h_m - mu * g

        return (), jax.tree.map(updated, state.client_corrections.take(client_ids), uplink.delta)

    def close(params, state, outcome, *, client_ids, round, **_):
        average, counted = outcome.moved, outcome.counted
        correction = jax.tree.map(lambda before, now: (beta * (before - now)).astype(now.dtype), state.average, average)
        after = tree.subtract(average, correction), average, correction
        moved, average, correction = tree.where(counted.any(), after, (params, state.average, state.correction))
        rows = state.client_corrections.put(client_ids, outcome.rows, counted)
        here = jnp.where(counted, client_ids, num_clients)  # beyond the last row: dropped
        last_rounds = state.last_rounds.at[here].set(jnp.asarray(round, jnp.int32), mode="drop")
        metrics = {**outcome.inner.metrics, "correction_norm": tree.norm(correction)}
        inner = outcome.inner._replace(metrics={})
        return moved, AdaBestState(inner, average, correction, rows, last_rounds, metrics)

    aggregate, sums = server_side(rule, own, close)
    client = ClientRule(begin=lambda downlink: (), direction=direction, report=lambda *_: ())
    needs = rule.needs | {"client_ids", "round"}
    return Algorithm(client, init, broadcast, aggregate, needs, rule.split, sums=sums)
