"""FoolsGold: clients that keep pulling in the same direction lose their weight."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, per_client, tree
from fedjax_drag.aggregators._clustering import cosine_distances
from fedjax_drag.ops.rules import Moved, PlainAggregator
from fedjax_drag.ops.screening import check_extras, empty_metrics
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Deltas, Params, State

_SAME = 1e-12  # 1 - cosine of vectors that are parallel up to rounding
_TOP = 0.99  # keeps the logit of the least similar client finite


class FoolsGoldState(NamedTuple):
    """State of :func:`foolsgold`.

    Attributes:
      history: sum of each client's deltas so far, ``[M, *p]``.
      metrics: of the last round.
    """

    history: PerClient
    metrics: dict[str, jax.Array]


class foolsgold(PlainAggregator):
    """Lowers the weight of clients whose summed deltas resemble those of another client.

    With the sum ``H_m`` of client m's deltas, this round's included, over the clients i, j of the round::

        c_ij = cos(H_i, H_j),  c_ii = 0,  v_i = max_j c_ij
        c_ij <- c_ij v_i / v_j  where v_i < v_j                  (pardons a client that resembles a sybil by chance)
        a_i = (1 - max_j c_ij) / max_k (1 - max_j c_kj)
        w_i = log(a_i / (1 - a_i)) + 1/2, clipped to [0, 1]
        theta += (1/S) sum_i w_i g_i

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds one sum of deltas for
        each.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``client_ids``. Metrics: ``trust`` (``w_i``), ``weight``
      (``w_i / S``), ``cosine`` to the update. A client that is absent or rejected keeps its history. If all clients
      are parallel, all are trusted.

    Raises:
      ValueError: if ``num_clients`` is not a count of at least 1.

    Breakdown point:
      0 for one long delta that resembles no other; any number of sybils that act alike

    Cost:
      8 passes over the deltas, a Gram product (S^2 d operations), memory M x d

    References:
      Fung et al., The limitations of federated learning in sybil settings, 2020, Algorithm 1 with kappa = 1.
      Interpretations: the paper adds ``sum w g``, where a delta is one gradient step; here ``w`` scales the client's
      share in the mean, as in the authors' code for deep networks, so that trusting everybody is :func:`fedavg`.
      Cosines are over the whole model, without the weighting by indicative features. The largest ``a`` counts as 0.99.
    """

    num_clients: int | None = None

    def check(self) -> None:
        if self.num_clients is not None:
            checks.count("num_clients", self.num_clients, 1)

    def init(self, params: Params) -> FoolsGoldState:
        clients = checks.known("num_clients", self.num_clients, self.name)
        history = per_client.zeros(params, clients, lambda p: tree.accurate(p).dtype)
        return FoolsGoldState(history, empty_metrics("trust"))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"client_ids"})

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        history = _grown(state.history, deltas, valid)
        trust = jnp.where(valid, _trust(cosine_distances(history), valid), 0.0)
        weight = trust * tree.uniform_weights(valid)
        update = tree.weighted_sum(weight, deltas)
        metrics = {"weight": weight, "cosine": tree.cosines(deltas, update), "trust": trust}
        return tree.move(params, update), FoolsGoldState(history, metrics)

    def apply(self, params: Params, deltas: Deltas, state: State, **extras: Any) -> tuple[Params, FoolsGoldState]:
        size = tree.check_cohort(params, deltas)
        extras = check_extras(extras, self.needs, params, size, self.num_clients)
        client_ids = extras["client_ids"]
        # Only the cohort's rows are touched, so that a round costs what the cohort does and not the federation.
        cohort = state._replace(history=state.history.take(client_ids))
        params, after = super().apply(params, deltas, cohort, **extras)
        history = state.history.put(client_ids, after.history, jnp.ones(client_ids.shape, bool))
        return params, after._replace(history=history)


def _grown(history: Deltas, deltas: Deltas, valid: Bool[Array, " clients"]) -> Deltas:
    """The cohort's sums with the deltas of the clients that count."""
    add = lambda past, delta: past + jnp.where(tree.expand(valid, delta), tree.accurate(delta), 0)
    return jax.tree.map(add, history, deltas)


def _trust(gaps: Float[Array, "clients clients"], valid: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """``w`` ``[S]`` from ``1 - cos`` of the histories ``[S, S]``, in which nothing cancels between near parallels."""
    others = valid[:, None] & valid[None, :] & ~jnp.eye(valid.shape[0], dtype=bool)
    gaps = jnp.where(others, gaps, 1.0)  # c_ii = 0
    nearest = gaps.min(1)
    # v_i = 1 - nearest_i, and 1 - c v_i / v_j = (1 - c) v_i / v_j + (v_j - v_i) / v_j
    less = jnp.maximum(nearest[:, None] - nearest, 0.0) * tree.inverse(1 - nearest)
    apart = (gaps * (1 - less) + less).min(1)
    apart = jnp.where(valid & (apart > _SAME), apart, 0.0)
    largest = apart.max()
    relative = jnp.where(largest > 0, apart * tree.inverse(largest), 1.0)
    bounded = jnp.clip(relative, 1 - _TOP, _TOP)
    return jnp.clip(jnp.log(bounded / (1 - bounded)) + 0.5, 0.0, 1.0)
