"""Clipped clustering: clips to the median length of all rounds, then averages the larger of two groups by direction."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._clustering import cosine_distances
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.kernels.order_statistics import median_of
from fedjax_drag.ops.linkage import larger_group, two_groups
from fedjax_drag.ops.rules import Moved, PlainAggregator
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.types import Deltas, Params, State


class ClippedClusteringState(NamedTuple):
    """State of :func:`clipped_clustering`.

    Attributes:
      norms: lengths of the deltas received last, in no order, ``[history]``.
      received: how many there have been, int32.
      metrics: of the last round.
    """

    norms: jax.Array
    received: jax.Array
    metrics: dict[str, jax.Array]


class clipped_clustering(PlainAggregator):
    """Clips deltas to the median of the lengths received so far, and averages the larger of two groups of them.

    With the n valid clients' lengths ``||g_m||`` of this round and all before::

        tau = median of all lengths so far
        g_m <- min(1, tau / ||g_m||) g_m
        Delta = mean over the larger of two groups

    The groups are those of average linkage on ``1 - cos(g_i, g_j)``: the two closest groups are merged until two are
    left, the distance of groups being the average over their members. Of two groups of the same size the one with the
    smaller largest distance counts, and both if these are equal, as with two clients.

    Args:
      history: how many lengths are kept, at least as many as the cohort has clients; the oldest go first.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``selected`` (1 for members of the group that counts, else
      0), ``scale`` (``min(1, tau / ||g_m||)``), ``weight`` (``scale`` / size of the group on its members), ``cosine``
      to the update. ``apply`` raises ValueError for a cohort larger than ``history``. The groups and ``tau`` have no
      gradient.

    Raises:
      ValueError: if ``history`` is not a count of at least 1.

    Breakdown point:
      1/2 for the length of the step, at most tau; its direction is bounded only if the larger group is honest

    Cost:
      4 passes over the deltas, a Gram product (S^2 d operations), S^2 for the linkage

    References:
      Li, Ngai and Voigt, An experimental study of Byzantine-robust aggregation schemes in federated learning, 2023.
      Interpretations: of all lengths ever received, the last ``history`` are kept; lengths of all messages that are not
      rejected count, of malicious clients too. Directions do not change by clipping, so that cosines are those of the
      deltas; with a zero delta they are 0.
    """

    history: int = 10000

    def check(self) -> None:
        checks.count("history", self.history, 1)

    def init(self, params: Params) -> ClippedClusteringState:
        dtype = jnp.result_type(*(tree.accurate(p) for p in jax.tree.leaves(params)))
        return ClippedClusteringState(
            jnp.zeros(self.history, dtype), jnp.zeros((), jnp.int32), empty_metrics("selected", "scale")
        )

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        if len(valid) > self.history:
            raise checks.ArgumentError(
                "history", f"must be at least {len(valid)}, the size of the cohort", given=self.history
            )
        norm = tree.norms(deltas)
        norms, received = _remembered(state, jax.lax.stop_gradient(norm), valid)
        tau = median_of(norms, jnp.arange(self.history) < received)
        scale = jnp.where(valid, clip_scale(norm, tau), 0.0)
        apart = cosine_distances(jax.lax.stop_gradient(deltas))
        selected = larger_group(two_groups(apart, valid, "average"), apart)
        weight = scale * tree.uniform_weights(selected)
        update = tree.weighted_sum(weight, deltas)
        metrics = {
            "weight": weight,
            "cosine": tree.cosines(deltas, update),
            "selected": selected.astype(jnp.float32),
            "scale": scale,
        }
        return tree.move(params, update), ClippedClusteringState(norms, received, metrics)


def _remembered(
    state: ClippedClusteringState, norm: Float[Array, " clients"], valid: Bool[Array, " clients"]
) -> tuple[Float[Array, " history"], jax.Array]:
    """The lengths with this round's in place of the oldest, and how many there have been."""
    history = len(state.norms)
    place = (state.received + jnp.cumsum(valid) - 1) % history
    norms = state.norms.at[jnp.where(valid, place, history)].set(norm, mode="drop")
    return norms, (state.received + valid.sum()).astype(jnp.int32)
