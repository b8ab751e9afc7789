"""Clustering: the deltas fall into two groups by direction, and the larger one counts."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import tree
from fedjax_drag.kernels.distances import pairs
from fedjax_drag.ops.linkage import larger_group, two_groups
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_by_mean
from fedjax_drag.types import Deltas, Params, State


def cosine_distances(deltas: Deltas) -> Float[Array, "clients clients"]:
    """``1 - cos(g_i, g_j)`` for all pairs, ``[S, S]`` in [0, 2]; 1 where either is zero or not finite, 0 with itself.

    As ``||u_i - u_j||^2 / 2`` for unit vectors, which keeps its digits where all directions are nearly the same.
    """
    norms = tree.norms(deltas)
    usable = norms >= jnp.finfo(norms.dtype).tiny  # below, the inverse overflows
    unit = jnp.where(usable, tree.inverse(norms), 0.0)
    apart = jnp.square(pairs(deltas, scale=unit).distance) / 2
    return jnp.where(usable[:, None] & usable, apart, 1.0).at[jnp.diag_indices(len(norms))].set(0.0)


class clustering(PlainAggregator):
    """Splits the deltas in two groups by their pairwise cosines and averages the larger group.

    The groups are those of complete linkage on ``1 - cos(g_i, g_j)``: the two closest groups are merged until two are
    left, the distance of groups being that of their farthest members. Of two groups of the same size the one with
    the smaller largest distance counts, and both if these are equal, as with two clients.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``selected`` (1 for members of the group that counts, else
      0), ``weight`` (1 / size of the group on its members), ``cosine`` to the average of the group. The split has no
      gradient; through the average it is that of a mean.

    Breakdown point:
      0: cosines ignore lengths, so one long delta in the majority's direction moves it anywhere

    Cost:
      3 passes over the deltas, a Gram product (S^2 d operations), S^2 for the linkage

    References:
      Sattler et al., On the Byzantine robustness of clustered federated learning, 2020. Interpretation: the paper asks
      for the bipartition with the smallest largest cosine across groups. Its authors compute complete linkage, as is
      done here; the exact minimiser, which is single linkage, tends to split off one client.
    """

    reports = ("selected",)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        del state
        apart = cosine_distances(jax.lax.stop_gradient(deltas))
        return moved_by_mean(params, deltas, larger_group(two_groups(apart, valid), apart))
