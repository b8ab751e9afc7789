"""FedDyn: a dynamic regulariser that makes the clients' stationary points agree with the server's."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import server_side
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, Params, State


class FedDynState(NamedTuple):
    """State of :func:`feddyn`.

    Attributes:
      aggregator: state of the aggregation rule, its metrics apart.
      correction: the server's ``h``, like ``params``: the mean of ``client_corrections``.
      client_corrections: ``h_m``, ``[M, *p]``.
      metrics: those of the aggregation rule, and the norm of the server's correction.
    """

    aggregator: State
    correction: Params
    client_corrections: PerClient
    metrics: dict[str, jax.Array]


def feddyn(num_clients: int, a: Any = 0.01, aggregator: Aggregator | None = None) -> Algorithm:
    """Adds to every client's loss a linear and a quadratic term that vanish together at the optimum.

    ::

        client:  w -= eta (grad f_m(w) - h_m + a (w - theta));   h_m <- h_m - a g_m
        server:  h <- h - a (1/M) sum_m g_m;   theta <- theta + mean g_m - h / a

    All corrections start at zero. ``h`` is the mean of the ``h_m`` of all M clients, the absent ones included. At a
    fixed point every ``h_m`` is the gradient of ``f_m`` and their sum is zero: unlike
    :func:`~fedjax_drag.clients.fedprox`, heterogeneous clients do not move the optimum.

    Args:
      num_clients: M, clients in the federation; the state holds one correction for each.
      a: strength of the regulariser, > 0. Its authors try 0.1, 0.01 and 0.001.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. Metrics: those of ``aggregator``, and the scalar ``correction_norm``
      ``||h||``. There is no message ``aux``. Only ``mean g_m`` is ``aggregator``'s: ``h`` is a plain sum of the
      deltas that are not rejected, so that a malicious client can still move ``h``, and with it the parameters, by
      ``1/M`` of its delta in every later round. It sums as
      deltas come if ``aggregator`` can, and then keeps nothing of each client but its row of the state.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Acar et al., Federated learning based on dynamic regularization, 2021, Algorithm 1. **[reading]** The mean of
      the local models is ``theta`` plus the step of ``aggregator``. A round in which nobody counts changes
      nothing, although ``h / a`` alone would move the parameters. ``a`` is the same for all clients, as in the paper;
      its authors' code divides it by the client's number of examples over the mean number.
    """
    checks.count("num_clients", num_clients, 1)
    checks.positive("a", a)
    rule = aggregator or fedavg()

    def init(params):
        rows = per_client.zeros(params, num_clients)
        inner = rule.init(params)
        metrics = {**inner.metrics, "correction_norm": jnp.zeros(())}
        return FedDynState(inner._replace(metrics={}), tree.zeros_like(params), rows, metrics)

    def broadcast(params, state, client_ids):
        return Downlink(start=params, own=state.client_corrections.take(client_ids))

    def direction(grad_fn, w, carry, downlink, batch):
        regularised = jax.tree.map(
            lambda g, h_m, x, x0: g - h_m + a * (x - x0), grad_fn(w, batch), downlink.own, w, downlink.start
        )
        return regularised, carry

    def own(uplink, state, counted, *, client_ids, **_):
        total = tree.weighted_sum(counted.astype(jnp.float32) / num_clients, uplink.delta)
        return total, jax.tree.map(lambda h_m, g: h_m - a * g, state.client_corrections.take(client_ids), uplink.delta)

    def close(params, state, outcome, *, client_ids, **_):
        correction = tree.move(state.correction, tree.scale(-a, outcome.total))
        moved = jax.tree.map(lambda q, h: (q - h / a).astype(q.dtype), outcome.moved, correction)
        moved = tree.where(outcome.counted.any(), moved, params)
        rows = state.client_corrections.put(client_ids, outcome.rows, outcome.counted)
        metrics = {**outcome.inner.metrics, "correction_norm": tree.norm(correction)}
        return moved, FedDynState(outcome.inner._replace(metrics={}), correction, rows, metrics)

    aggregate, sums = server_side(rule, own, close)
    client = ClientRule(begin=lambda downlink: (), direction=direction, report=lambda *_: ())
    return Algorithm(client, init, broadcast, aggregate, rule.needs | {"client_ids"}, rule.split, sums=sums)
