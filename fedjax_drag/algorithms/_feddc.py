"""FedDC: each client learns its drift from the global model, and is corrected by it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import server_side
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, Params, State


class FedDCState(NamedTuple):
    """State of :func:`feddc`.

    Attributes:
      aggregator: state of the aggregation rule, its metrics apart.
      drift: the mean of ``client_drifts``, like ``params``.
      control: server control variate ``c``, like ``params``: the mean of ``client_controls``.
      client_drifts: ``h_m``, ``[M, *p]``.
      client_controls: ``c_m``, ``[M, *p]``.
      metrics: those of the aggregation rule, and the norm of the mean drift.
    """

    aggregator: State
    drift: Params
    control: Params
    client_drifts: PerClient
    client_controls: PerClient
    metrics: dict[str, jax.Array]


def feddc(num_clients: int, a: Any = 0.01, correction: Any = 1.0, aggregator: Aggregator | None = None) -> Algorithm:
    """Penalises the distance between the global model and a local model plus the client's drift.

    ::

        client:  w -= eta (grad f_m(w) + a (w + h_m - theta) + b (c - c_m))
                 h_m <- h_m + g_m;   c_m' = c_m - c - g_m / (U eta)
        server:  theta <- theta + mean g_m + (1/M) sum_m h_m;   c += (1/M) sum_m (c_m' - c_m)

    The sums run over all M clients, of whom the absent ones have not changed. Everything starts at zero. With
    ``b = 0`` this is :func:`~fedjax_drag.algorithms.feddyn`, whose correction is ``-a`` times the drift.

    Args:
      num_clients: M, clients in the federation; the state holds a drift and a control variate for each.
      a: strength of the penalty, > 0. Its authors' code: 0.01 for CIFAR-10.
      correction: ``b``, strength of the gradient correction, >= 0; in the paper 1.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. The message ``aux`` is ``c_m' - c_m``. Metrics: those of
      ``aggregator``, and the scalar ``drift_norm`` ``||(1/M) sum_m h_m||``. Only ``mean g_m`` is ``aggregator``'s:
      the drifts sum up the deltas, and ``c`` the ``aux``, of all clients that are not rejected, so that a malicious
      client can still move both, by ``1/M`` of what it sends and without bound: by its delta this round's parameters
      and all later ones, by its ``aux``, from the next round on, all clients' steps alike, which ``aggregator``
      cannot tell. A client with a non-finite entry in either half is rejected whole. It sums as
      deltas come if ``aggregator`` can, and then keeps nothing of each client but its rows of the state.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Gao et al., FedDC: Federated learning with non-IID data via local drift decoupling and correction, 2022.
      **[reading]** As in its authors' code: the correction term, written with the last updates in the paper, uses
      the control variates of :func:`~fedjax_drag.algorithms.scaffold`, and the server adds the mean drift of all
      clients to the mean of the local models of the cohort. All clients weigh the same. A round in which nobody
      counts changes nothing, although the drift alone would move the parameters.
    """
    checks.count("num_clients", num_clients, 1)
    checks.positive("a", a)
    checks.in_range("correction", correction, 0.0)
    rule = aggregator or fedavg()

    def init(params):
        rows = per_client.zeros(params, num_clients)
        zero = tree.zeros_like
        inner = rule.init(params)
        metrics = {**inner.metrics, "drift_norm": jnp.zeros(())}
        return FedDCState(inner._replace(metrics={}), zero(params), zero(params), rows, zero(rows), metrics)

    def broadcast(params, state, client_ids):
        own = state.client_drifts.take(client_ids), state.client_controls.take(client_ids)
        return Downlink(start=params, shared=state.control, own=own)

    def direction(grad_fn, w, carry, downlink, batch):
        drift, control = downlink.own
        penalised = jax.tree.map(
            lambda g, x, h_m, x0: g + a * (x + h_m - x0), grad_fn(w, batch), w, drift, downlink.start
        )
        corrected = jax.tree.map(lambda d, c, c_m: d + correction * (c - c_m), penalised, downlink.shared, control)
        return corrected, carry

    def report(downlink, w_end, carry, total_step_size):
        del carry
        return jax.tree.map(
            lambda c, w, start: (-c - (w - start) / total_step_size).astype(c.dtype),
            downlink.shared,
            w_end,
            downlink.start,
        )

    def own(uplink, state, counted, *, client_ids, **_):
        change = tree.weighted_sum(counted.astype(jnp.float32) / num_clients, (uplink.delta, uplink.aux))
        rows = state.client_drifts.take(client_ids), state.client_controls.take(client_ids)
        return change, tree.add(rows, (uplink.delta, uplink.aux))

    def close(params, state, outcome, *, client_ids, **_):
        drift, control = tree.move((state.drift, state.control), outcome.total)
        moved = tree.where(outcome.counted.any(), tree.move(outcome.moved, drift), params)
        drifts = state.client_drifts.put(client_ids, outcome.rows[0], outcome.counted)
        controls = state.client_controls.put(client_ids, outcome.rows[1], outcome.counted)
        metrics = {**outcome.inner.metrics, "drift_norm": tree.norm(drift)}
        return moved, FedDCState(outcome.inner._replace(metrics={}), drift, control, drifts, controls, metrics)

    aggregate, sums = server_side(rule, own, close)
    client = ClientRule(begin=lambda downlink: (), direction=direction, report=report)
    return Algorithm(client, init, broadcast, aggregate, rule.needs | {"client_ids"}, rule.split, sums=sums)
