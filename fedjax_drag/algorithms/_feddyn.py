"""FedDyn: a dynamic regulariser that makes the clients' stationary points agree with the server's."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.algorithms._two_sided import Contribution, Outcome, SummedMethod, apart
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Batch, Downlink, GradFn, Params, Scalar, State, Uplink


class FedDynState(NamedTuple):
    """State of :func:`feddyn`.

    Attributes:
      aggregator: state of the aggregation rule, without its metrics.
      correction: the server's ``h``, like ``params``: the mean of ``client_corrections``.
      client_corrections: ``h_m``, ``[M, *p]``.
      metrics: those of the aggregation rule, and the norm of the server's correction.
    """

    aggregator: State
    correction: Params
    client_corrections: PerClient
    metrics: dict[str, jax.Array]


class feddyn(SummedMethod):
    """Adds to every client's loss a linear and a quadratic term; both vanish at the optimum.

    ::

        client:  w -= eta (grad f_m(w) - h_m + a (w - theta));   h_m <- h_m - a g_m
        server:  h <- h - a (1/M) sum_m g_m;   theta <- theta + mean g_m - h / a

    All corrections start at zero. ``h`` is the mean of the ``h_m`` of all M clients, the absent ones included. At a
    fixed point every ``h_m`` is the gradient of ``f_m`` and their sum is zero: unlike
    :func:`~fedjax_drag.clients.fedprox`, heterogeneous clients do not move the optimum.

    Assumes that the local steps rest where this direction is zero. A ``local_optimizer`` with momentum does, also where
    its state is kept, and leaves the fixed point; one with weight decay moves it.

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds one correction for
        each.
      a: strength of the regulariser, > 0. Its authors try 0.1, 0.01 and 0.001.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      Metrics: those of ``aggregator``, and the scalar ``correction_norm`` ``||h||``. There is no message ``aux``.
      ``aggregator`` protects ``mean g_m`` only: ``h`` is a plain sum of the deltas that are not rejected, so that a
      malicious client can still move ``h``, and with it the parameters, by ``1/M`` of its delta in every later round.
      Deltas can be summed in chunks if ``aggregator`` can; then only its row of the state is kept of each client.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Acar et al., Federated learning based on dynamic regularization, 2021, Algorithm 1. **[reading]** The mean of
      the local models is ``theta`` plus the step of ``aggregator``. A round in which nobody counts changes
      nothing, although ``h / a`` alone would move the parameters. ``a`` is the same for all clients, as in the paper;
      its authors' code divides it by the client's number of examples over the mean number.
    """

    num_clients: int | None = None
    a: Scalar = 0.01
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.positive("a", self.a)

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | {"client_ids"}

    def init(self, params: Params) -> FedDynState:
        inner, metrics = apart(self.rule.init(params), correction_norm=jnp.zeros(()))
        return FedDynState(inner, tree.zeros_like(params), per_client.zeros(params, self.clients), metrics)

    def broadcast(self, params: Params, state: FedDynState, client_ids: jax.Array) -> Downlink:
        return Downlink(start=params, own=state.client_corrections.take(client_ids))

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        def regularised(g: jax.Array, h_m: jax.Array, w: jax.Array, theta: jax.Array) -> jax.Array:
            return g - h_m + self.a * (w - theta)

        return jax.tree.map(regularised, grad_fn(w, batch), downlink.own, w, downlink.start), carry

    def contribute(
        self, uplink: Uplink, state: FedDynState, counted: jax.Array, *, client_ids: jax.Array, **_: Any
    ) -> Contribution:
        total = tree.weighted_sum(counted.astype(jnp.float32) / self.clients, uplink.delta)  # (1/M) sum_m g_m
        before = state.client_corrections.take(client_ids)
        return Contribution(total, jax.tree.map(lambda h_m, g_m: h_m - self.a * g_m, before, uplink.delta))

    def close(
        self, params: Params, state: FedDynState, outcome: Outcome, *, client_ids: jax.Array, **_: Any
    ) -> tuple[Params, FedDynState]:
        h = tree.move(state.correction, tree.scale(-self.a, outcome.total))
        theta = jax.tree.map(lambda moved, h: (moved - h / self.a).astype(moved.dtype), outcome.moved, h)
        theta = tree.where(outcome.counted.any(), theta, params)
        rows = state.client_corrections.put(client_ids, outcome.rows, outcome.counted)
        inner, metrics = apart(outcome.inner, correction_norm=tree.norm(h))
        return theta, FedDynState(inner, h, rows, metrics)
