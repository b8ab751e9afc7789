"""FedDC: each client learns its drift from the global model, and is corrected by it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.algorithms._scaffold import control_change
from fedjax_drag.algorithms._two_sided import Contribution, Outcome, SummedMethod, apart
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Batch, Downlink, GradFn, Params, Scalar, State, Uplink


class FedDCState(NamedTuple):
    """State of :func:`feddc`.

    Attributes:
      aggregator: state of the aggregation rule, without its metrics.
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


class _Own(NamedTuple):
    """Of one client, or with a leading axis ``[S]``: its drift ``h_m`` and its control variate ``c_m``."""

    drift: Params
    control: Params


class feddc(SummedMethod):
    """Penalises the distance between the global model and a local model plus the client's drift.

    ::

        client:  w -= eta (grad f_m(w) + a (w + h_m - theta) + b (c - c_m))
                 h_m <- h_m + g_m;   c_m' = c_m - c - g_m / (U eta)
        server:  theta <- theta + mean g_m + (1/M) sum_m h_m;   c += (1/M) sum_m (c_m' - c_m)

    The sums run over all M clients; those that are absent do not change. Everything starts at zero. With
    ``b = 0`` this is :func:`~fedjax_drag.algorithms.feddyn`, whose correction is ``-a`` times the drift.

    Assumes steps of ``eta`` along this direction. With a ``local_optimizer`` ``c_m'`` is the mean direction that it has
    made of gradients, longer by ``1 / (1 - momentum)``; a kept state adds those of earlier rounds.

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds a drift and a control
        variate for each.
      a: strength of the penalty, > 0. Its authors' code: 0.01 for CIFAR-10.
      correction: ``b``, strength of the gradient correction, >= 0; in the paper 1.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      The message ``aux`` is ``c_m' - c_m``. Metrics: those of ``aggregator``, and the scalar ``drift_norm``, the length
      of ``(1/M) sum_m h_m``. ``aggregator`` protects ``mean g_m`` only: the drifts sum up the deltas, and ``c`` the
      ``aux``, of all clients that are not rejected. A malicious client can move both without bound, by ``1/M`` of what
      it sends: by its delta the parameters of this and all later rounds, by its ``aux`` the steps of all clients from
      the next round on, in a direction common to all, which ``aggregator`` cannot detect. A client with a non-finite
      entry in either half is rejected whole. Messages can be summed in chunks if ``aggregator`` can; then only its rows
      of the state are kept of each client.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Gao et al., FedDC: Federated learning with non-IID data via local drift decoupling and correction, 2022.
      **[reading]** As in its authors' code: the correction term, written with the last updates in the paper, uses
      the control variates of :func:`~fedjax_drag.algorithms.scaffold`, and the server adds the mean drift of all
      clients to the mean of the local models of the cohort. All clients weigh the same. A round in which nobody
      counts changes nothing, although the drift alone would move the parameters.
    """

    num_clients: int | None = None
    a: Scalar = 0.01
    correction: Scalar = 1.0
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.positive("a", self.a)
        checks.in_range("correction", self.correction, 0.0)

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | {"client_ids"}

    def init(self, params: Params) -> FedDCState:
        inner, metrics = apart(self.rule.init(params), drift_norm=jnp.zeros(()))
        zero, rows = tree.zeros_like, per_client.zeros(params, self.clients)
        return FedDCState(inner, zero(params), zero(params), rows, zero(rows), metrics)

    def broadcast(self, params: Params, state: FedDCState, client_ids: jax.Array) -> Downlink:
        own = _Own(state.client_drifts.take(client_ids), state.client_controls.take(client_ids))
        return Downlink(start=params, shared=state.control, own=own)

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        def penalised(g: jax.Array, w: jax.Array, h_m: jax.Array, theta: jax.Array) -> jax.Array:
            return g + self.a * (w + h_m - theta)

        def corrected(d: jax.Array, c: jax.Array, c_m: jax.Array) -> jax.Array:
            return d + self.correction * (c - c_m)

        own: _Own = downlink.own
        penalty = jax.tree.map(penalised, grad_fn(w, batch), w, own.drift, downlink.start)
        return jax.tree.map(corrected, penalty, downlink.shared, own.control), carry

    def report(self, downlink: Downlink, w_end: Params, carry: Any, total_step_size: jax.Array) -> Params:
        return control_change(downlink, w_end, total_step_size)

    def contribute(
        self, uplink: Uplink, state: FedDCState, counted: jax.Array, *, client_ids: jax.Array, **_: Any
    ) -> Contribution:
        change = _Own(uplink.delta, uplink.aux)  # h_m <- h_m + g_m;   c_m <- c_m'
        before = _Own(state.client_drifts.take(client_ids), state.client_controls.take(client_ids))
        total = tree.weighted_sum(counted.astype(jnp.float32) / self.clients, change)
        return Contribution(total, tree.add(before, change))

    def close(
        self, params: Params, state: FedDCState, outcome: Outcome, *, client_ids: jax.Array, **_: Any
    ) -> tuple[Params, FedDCState]:
        h, c = tree.move(_Own(state.drift, state.control), outcome.total)
        theta = tree.where(outcome.counted.any(), tree.move(outcome.moved, h), params)
        inner, metrics = apart(outcome.inner, drift_norm=tree.norm(h))
        return theta, FedDCState(
            aggregator=inner,
            drift=h,
            control=c,
            client_drifts=state.client_drifts.put(client_ids, outcome.rows.drift, outcome.counted),
            client_controls=state.client_controls.put(client_ids, outcome.rows.control, outcome.counted),
            metrics=metrics,
        )
