"""FLDetector: removes the clients whose messages the course of training does not predict."""

# A field stands in the place of a property, and a state of its own in that of the wrapper's.
# pyright: reportIncompatibleMethodOverride=false

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag import checks, per_client, tree
from fedjax_drag.ops.kmeans import upper_cluster
from fedjax_drag.ops.lbfgs import change_along
from fedjax_drag.ops.rules import Moved, WrappingAggregator, wrapped
from fedjax_drag.ops.screening import check_extras
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Deltas, Params, State


class FLDetectorState(NamedTuple):
    """State of :func:`fldetector`.

    Attributes:
      inner: of the other rule, without its metrics.
      last: the delta that each client sent last, ``[M, *p]``.
      updates: of the last N + 1 rounds, the oldest first, ``[N + 1, *p]``; zero before the first.
      rounds: how many updates there were, int32.
      sent: ``[M]`` bool, the clients that have sent a delta.
      distances: the last N distances of each client from its prediction, ``[M, N]``.
      number: how many distances of each client there are since the last removal, ``[M]`` int32.
      removed: ``[M]`` bool, the clients that do not count any more.
      removals: how many times clients were removed, int32.
      metrics: of the last round.
    """

    inner: State
    last: PerClient
    updates: Params
    rounds: jax.Array
    sent: jax.Array
    distances: jax.Array
    number: jax.Array
    removed: jax.Array
    removals: jax.Array
    metrics: dict[str, jax.Array]


class fldetector(WrappingAggregator):
    """Predicts each client's delta from its last one, and removes the clients that keep surprising; then another rule.

    Of the last N + 1 updates ``u`` before that of round t, ``s_j = u_j-1`` and ``y_j = u_j - u_j-1`` for j = t - N,
    ..., t - 1. With the matrix B of L-BFGS through the pairs (s_j, y_j), over the n clients of the round::

        predicted_m = g_m,t-1 + B u_t-1
        d_m = ||g_m - predicted_m|| / sum_k ||g_k - predicted_k||
        score_m = mean of the last N of d_m

    If the gap statistic finds more than one cluster among the scores, 2-means divides them, and the clients with the
    larger scores are removed for good. All distances are then forgotten, and those of the others begin anew.

    Args:
      aggregator: the rule that gets the deltas of the clients that are left, in the paper a robust one, such as
        :func:`median`.
      window: N >= 1. The first removal is in the (2 N + 1)-th round at the earliest.
      max_removals: how many times clients are removed, >= 1; None for no bound. Each test for clusters can find some
        among honest clients, so that without a bound they are removed one group after the other.
      num_clients: M, clients in the federation; default those of the simulation. The state holds a delta and N numbers
        for each.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``client_ids``, ``key`` and what ``aggregator`` needs.
      Metrics: ``score`` (the mean of the client's distances so far, at most N), ``selected`` (1 for clients that count,
      0 for those that are removed or absent), those of the wrapped rule that are scalars, and its ``weight`` and
      ``cosine``. If everybody is removed nothing moves. The choice has no gradient.

    Raises:
      ValueError: if ``window``, ``max_removals`` or ``num_clients`` is not a count of at least 1.

    Breakdown point:
      that of the wrapped rule; it adds nothing before the first removal, nor against attackers that are predictable

    Cost:
      that of the wrapped rule, 2 N + 5 passes over the deltas; memory (M + N) x d

    References:
      Zhang, Cao, Jia and Gong, FLDetector: defending federated learning against model poisoning attacks via detecting
      malicious clients, KDD 2022, Algorithms 1 to 3; N = 10, ten reference samples and the scaling of the scores to
      [0, 1] as in the authors' code, zaixizhang/FLDetector. Interpretations: deltas take the place of gradients, of
      which B is linear. The parameters move by the updates alone, so that their change is the last update. Clients are
      removed once by default, as in that code, and the training goes on, where the paper starts it anew and repeats
      all. A client that was absent is predicted from the last delta that it sent, and those with N distances are
      compared, if there are three. k-means of numbers on a line is solved exactly. The matrix of L-BFGS is inverted on
      its range only, and a prediction that float32 cannot hold is one that came true.
    """

    window: int = 10
    max_removals: int | None = 1
    num_clients: int | None = None
    reports = ("score", "selected")

    def check(self) -> None:
        super().check()
        checks.count("window", self.window, 1)
        for name in ("max_removals", "num_clients"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), 1)

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"client_ids", "key"}

    def init(self, params: Params) -> FLDetectorState:
        clients = checks.known("num_clients", self.num_clients, self.name)
        dtype = lambda p: tree.accurate(p).dtype
        around = super().init(params)
        return FLDetectorState(
            inner=around.inner,
            last=per_client.zeros(params, clients, dtype),
            updates=per_client.zeros(params, self.window + 1, dtype).rows,
            rounds=jnp.zeros((), jnp.int32),
            sent=jnp.zeros(clients, bool),
            distances=jnp.zeros((clients, self.window)),
            number=jnp.zeros(clients, jnp.int32),
            removed=jnp.zeros(clients, bool),
            removals=jnp.zeros((), jnp.int32),
            metrics=around.metrics,
        )

    def combine(
        self,
        params: Params,
        deltas: Deltas,
        state: FLDetectorState,
        *,
        valid: jax.Array,
        client_ids: jax.Array,
        key: jax.Array,
        **extras: Any,
    ) -> Moved:
        own, key = jax.random.split(key)
        counted = valid & ~state.removed[client_ids]
        still = jax.lax.stop_gradient(deltas)
        judged = counted & state.sent[client_ids] & (state.rounds > self.window)
        state = self._measured(still, state, client_ids, judged)
        score = jnp.where(valid, mean_distances(state)[client_ids], 0.0)
        state = self._without_suspects(state, own)
        counted &= ~state.removed[client_ids]
        moved, inner = self.aggregator.apply(
            params, deltas, state.inner, valid=counted, client_ids=client_ids, key=key, **extras
        )
        update = tree.subtract(jax.tree.map(tree.accurate, moved), params)
        after = wrapped(inner, {name: inner.metrics[name] for name in ("weight", "cosine")})
        return moved, state._replace(
            inner=after.inner,
            last=jax.tree.map(functools.partial(_replaced, valid), state.last, still),
            updates=jax.tree.map(lambda past, u: jnp.concatenate([past[1:], u[None]]), state.updates, update),
            rounds=state.rounds + 1,
            sent=state.sent.at[client_ids].max(valid),
            metrics=after.metrics | {"score": score, "selected": counted.astype(score.dtype)},
        )

    def apply(self, params: Params, deltas: Deltas, state: State, **extras: Any) -> tuple[Params, FLDetectorState]:
        size = tree.check_cohort(params, deltas)
        extras = check_extras(extras, self.requires, params, size, self.num_clients)
        client_ids = extras["client_ids"]
        # Only the cohort's rows are touched, so that a round costs what the cohort does and not the federation.
        cohort = state._replace(last=state.last.take(client_ids))
        params, after = super().apply(params, deltas, cohort, **extras)
        last = state.last.put(client_ids, after.last, jnp.ones(client_ids.shape, bool))
        return params, after._replace(last=last)

    def _measured(
        self,
        deltas: Deltas,
        state: FLDetectorState,
        client_ids: Int[Array, " clients"],
        judged: Bool[Array, " clients"],
    ) -> FLDetectorState:
        """The state with this round's distances ``d_m`` of the clients that are judged."""
        change = change_along(state.updates)
        gap = tree.norms(jax.tree.map(lambda g, last, b: g - last - b, deltas, state.last, change))
        gap = jnp.where(judged, gap, 0.0)
        gap = gap * tree.inverse(gap.max())
        rows = jnp.concatenate([state.distances[client_ids, 1:], (gap * tree.inverse(gap.sum()))[:, None]], axis=1)
        rows = jnp.where(judged[:, None], rows, state.distances[client_ids])
        number = state.number.at[client_ids].add(judged)
        return state._replace(distances=state.distances.at[client_ids].set(rows), number=number)

    def _without_suspects(self, state: FLDetectorState, key: chex.PRNGKey) -> FLDetectorState:
        """The state after those that stand out among the clients with N distances are removed."""
        ready = (state.number >= self.window) & ~state.removed
        if self.max_removals is not None:
            ready &= state.removals < self.max_removals
        suspects = upper_cluster(mean_distances(state), ready, key)
        return state._replace(
            removed=state.removed | suspects,
            removals=state.removals + suspects.any(),
            number=jnp.where(suspects.any(), 0, state.number),
            distances=jnp.where(suspects.any(), 0, state.distances),
        )


def mean_distances(state: FLDetectorState) -> Float[Array, " federation"]:
    """The scores of all clients, over the distances that there are; 0 without any."""
    window = state.distances.shape[1]
    return state.distances.sum(1) / jnp.clip(state.number, 1, window)


def _replaced(valid: Bool[Array, " clients"], last: jax.Array, delta: jax.Array) -> jax.Array:
    return jnp.where(tree.expand(valid, delta), tree.accurate(delta), last)
