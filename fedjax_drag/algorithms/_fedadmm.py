"""FedADMM: the clients' augmented Lagrangian, and a server that follows the mean of their augmented models."""

from typing import Any, NamedTuple

import jax

from fedjax_drag import checks, per_client, tree
from fedjax_drag.algorithms._two_sided import Contribution, Outcome, SummedMethod, apart, step_between
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Batch, Deltas, Downlink, GradFn, Params, Scalar, State, Uplink


class FedADMMState(NamedTuple):
    """State of :func:`fedadmm`.

    Attributes:
      aggregator: state of the aggregation rule, without its metrics.
      client_duals: ``y_m``, the dual variables over ``rho``, ``[M, *p]``.
      client_models: ``w_m``, each client's model after its last pass, ``[M, *p]``.
      metrics: those of the aggregation rule.
    """

    aggregator: State
    client_duals: PerClient
    client_models: PerClient
    metrics: dict[str, jax.Array]


class fedadmm(SummedMethod):
    """Minimises each client's augmented Lagrangian, in which dual variables add up how far it ends from the server.

    ::

        client:  w -= eta (grad f_m(w) + rho (w - theta + y_m))
                 w_m' = w,   y_m' = y_m + w - theta;   D_m = (w_m' + y_m') - (w_m + y_m)
        server:  theta <- theta + eta_g mean D_m

    ``y_m`` is the dual variable over ``rho`` and starts at 0, ``w_m`` at the initial parameters. ``D_m`` is the change
    of the client's augmented model ``w_m + y_m``, so that with ``eta_g = S / M``, or with all clients in every round,
    ``theta`` is the mean of the augmented models of all M clients. With all clients in every round this is
    :func:`~fedjax_drag.algorithms.feddyn` with ``a = rho``.

    Assumes that the local steps rest where this direction is zero. A ``local_optimizer`` with momentum does, also where
    its state is kept, and leaves the fixed point; one with weight decay moves it.

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds a dual variable and a
        model for each.
      rho: strength of the quadratic term, >= 0; 0 leaves the clients :func:`~fedjax_drag.clients.sgd`. Paper: 0.01.
      server_step_size: ``eta_g``, > 0. Authors' code: 1, and 0.5 after some rounds.
      aggregator: rule that takes the place of the mean of the ``D_m``; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      Metrics: those of ``aggregator``. There is no message ``aux``: the server computes ``D_m = theta - w_m + 2 g_m``
      of the delta and of what it keeps. ``aggregator`` protects all that moves ``theta``. Deltas can be summed in
      chunks if ``aggregator`` can; then only its rows of the state are kept of each client.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Gong, Li and Freris, FedADMM: A robust federated deep learning framework with adaptivity to system heterogeneity,
      ICDE 2022, Algorithm 1. **[reading]** A pass starts from the global model, as in its authors' code and as the
      paper recommends, not from ``w_m``. That code also has ``theta`` in the place of ``w_m``, so that ``D_m`` is
      twice the delta there; here it is the change that the paper defines.
    """

    num_clients: int | None = None
    rho: Scalar = 0.01
    server_step_size: Scalar = 1.0
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("rho", self.rho, 0.0)
        checks.positive("server_step_size", self.server_step_size)

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | {"client_ids"}

    def init(self, params: Params) -> FedADMMState:
        inner, metrics = apart(self.rule.init(params))
        duals, models = per_client.zeros(params, self.clients), per_client.repeat(params, self.clients)
        return FedADMMState(inner, duals, models, metrics)

    def broadcast(self, params: Params, state: FedADMMState, client_ids: jax.Array) -> Downlink:
        return Downlink(start=params, own=state.client_duals.take(client_ids))

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        def augmented(g: jax.Array, w: jax.Array, theta: jax.Array, y_m: jax.Array) -> jax.Array:
            return g + self.rho * (w - theta + y_m)

        return jax.tree.map(augmented, grad_fn(w, batch), w, downlink.start, downlink.own), carry

    def messages(
        self, params: Params, uplink: Uplink, state: FedADMMState, *, client_ids: jax.Array, **_: Any
    ) -> Deltas:
        before = state.client_models.take(client_ids)
        return jax.tree.map(lambda theta, w_m, g_m: theta - w_m + 2 * g_m, params, before, uplink.delta)

    def contribute(
        self, uplink: Uplink, state: FedADMMState, counted: jax.Array, *, client_ids: jax.Array, **_: Any
    ) -> Contribution:
        del counted
        return Contribution(rows=(tree.add(state.client_duals.take(client_ids), uplink.delta), uplink.delta))

    def close(
        self, params: Params, state: FedADMMState, outcome: Outcome, *, client_ids: jax.Array, **_: Any
    ) -> tuple[Params, FedADMMState]:
        duals, deltas = outcome.rows
        inner, metrics = apart(outcome.inner)
        return step_between(params, outcome.moved, self.server_step_size), FedADMMState(
            aggregator=inner,
            client_duals=state.client_duals.put(client_ids, duals, outcome.counted),
            client_models=state.client_models.put(client_ids, tree.move(params, deltas), outcome.counted),
            metrics=metrics,
        )
