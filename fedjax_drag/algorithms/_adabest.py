"""AdaBest: client corrections that fade while a client is away, and a server correction without a history."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.algorithms._two_sided import Contribution, Outcome, SummedMethod, apart
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Batch, Downlink, GradFn, Params, Scalar, State, Uplink


class AdaBestState(NamedTuple):
    """State of :func:`adabest`.

    Attributes:
      aggregator: state of the aggregation rule, without its metrics.
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


class adabest(SummedMethod):
    """Corrects local steps by the client's past deltas and the server's step by the change of the average.

    ::

        client:  w -= eta (grad f_m(w) - h_m);   h_m <- h_m / (t - t_m) - mu g_m;   t_m <- t
        server:  theta_bar = theta + mean g_m;   h = beta (theta_bar_prev - theta_bar);   theta = theta_bar - h

    The corrections start at zero, so that a client's first participation leaves ``h_m = -mu g_m``, and
    ``theta_bar_prev`` at ``theta_0``. With ``mu = beta = 0`` the parameters are those of the plain aggregation rule.

    With full participation, a fixed point is a stationary point of
    ``F(theta) + mu (1 - beta) / 2 ||theta - theta_0||^2``, not of the objective ``F``.

    Assumes steps of ``eta`` along the corrected gradient. With a ``local_optimizer``, its state kept or not, deltas are
    ``1 / (1 - momentum)`` times as long, by which ``mu`` is stronger.

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds one correction for
        each.
      mu: strength of the clients' correction, >= 0. Paper of DRAG: 0.02.
      beta: strength of the server's correction, in [0, 1]. Paper of DRAG: 0.8 for EMNIST, 0.2 for CIFAR-10.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`. It moves ``theta`` to ``theta_bar``.

    Notes:
      It needs the extra ``round``. Metrics: those of ``aggregator``, and the scalar ``correction_norm`` ``||h||``.
      There is no message ``aux``: a client's delta changes its own row of the state, and everything that is shared
      through ``aggregator`` only. Deltas can be summed in chunks if ``aggregator`` can; then only its row of the state
      is kept of each client.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Varno et al., AdaBest: Minimizing client drift in federated learning via adaptive bias estimation, 2022;
      settings of Zhu et al., DRAG: Divergence-based adaptive aggregation in federated learning on non-IID data,
      Section VI. **[reading]** ``t_m`` is the last round in which the client's message was counted: a rejected
      message does not change it. ``mu`` is the same for all clients; its authors' code scales it by each client's
      number of examples.
    """

    num_clients: int | None = None
    mu: Scalar = 0.02
    beta: Scalar = 0.8
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("mu", self.mu, 0.0)
        checks.in_range("beta", self.beta, 0.0, 1.0)

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | {"client_ids", "round"}

    def init(self, params: Params) -> AdaBestState:
        inner, metrics = apart(self.rule.init(params), correction_norm=jnp.zeros(()))
        return AdaBestState(
            aggregator=inner,
            average=jax.tree.map(jnp.array, params),  # a copy: the caller may donate both
            correction=tree.zeros_like(params),
            client_corrections=per_client.zeros(params, self.clients),
            last_rounds=jnp.full(self.clients, -1, jnp.int32),
            metrics=metrics,
        )

    def broadcast(self, params: Params, state: AdaBestState, client_ids: jax.Array) -> Downlink:
        return Downlink(start=params, own=state.client_corrections.take(client_ids))

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        return tree.subtract(grad_fn(w, batch), downlink.own), carry  # grad f_m(w) - h_m

    def contribute(
        self,
        uplink: Uplink,
        state: AdaBestState,
        counted: jax.Array,
        *,
        client_ids: jax.Array,
        round: jax.Array,
        **_: Any,
    ) -> Contribution:
        del counted
        # No round has passed between a client's first message and a zero row; the same round again counts as one.
        fade = 1 / tree.accurate(jnp.maximum(round - state.last_rounds[client_ids], 1))

        def corrected(h_m: jax.Array, g_m: jax.Array) -> jax.Array:
            return tree.expand(fade, g_m) * h_m - self.mu * g_m  # h_m / (t - t_m) - mu g_m

        return Contribution(rows=jax.tree.map(corrected, state.client_corrections.take(client_ids), uplink.delta))

    def close(
        self,
        params: Params,
        state: AdaBestState,
        outcome: Outcome,
        *,
        client_ids: jax.Array,
        round: jax.Array,
        **_: Any,
    ) -> tuple[Params, AdaBestState]:
        counted, theta_bar = outcome.counted, outcome.moved
        h = jax.tree.map(lambda before, now: (self.beta * (before - now)).astype(now.dtype), state.average, theta_bar)
        theta = tree.subtract(theta_bar, h)
        now, before = (theta, theta_bar, h), (params, state.average, state.correction)
        theta, theta_bar, h = tree.where(counted.any(), now, before)
        here = jnp.where(counted, client_ids, self.clients)  # beyond the last row: dropped
        inner, metrics = apart(outcome.inner, correction_norm=tree.norm(h))
        return theta, AdaBestState(
            aggregator=inner,
            average=theta_bar,
            correction=h,
            client_corrections=state.client_corrections.put(client_ids, outcome.rows, counted),
            last_rounds=state.last_rounds.at[here].set(jnp.asarray(round, jnp.int32), mode="drop"),
            metrics=metrics,
        )
