"""HDBSCAN inside a compiled program: clusters of any number and size from the distances alone, and noise."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag.ops.linkage import longest_gaps


class _Groups(NamedTuple):
    """The groups that single linkage has merged so far; every entry is ``[n]``, that of each point's group.

    Attributes:
      first: index of its first member.
      size: how many it has.
      lifetimes: of a cluster, the sum over its members of ``1 / distance`` at which each leaves it.
      within: sum of the stabilities of the clusters inside it that are selected so far.
      label: the selected cluster inside that the point is in, the index of its first member.
    """

    first: jax.Array
    size: jax.Array
    lifetimes: jax.Array
    within: jax.Array
    label: jax.Array


def hdbscan(
    distances: Float[Array, "points points"], valid: Bool[Array, " points"], min_cluster_size: int, min_samples: int
) -> Int[Array, " points"]:
    """The clusters that exist longest while the distance within which points are connected shrinks.

    With the distance ``core_i`` of a point to its k-th neighbour, ``k = min_samples``, points are connected within
    ``max(core_i, core_j, distance_ij)``. As that shrinks, the one group of all points breaks. Where at least two parts
    of at least ``min_cluster_size`` points are left, the cluster ends, and these are new ones; parts that are smaller
    leave their cluster. With ``lambda = 1 / distance``, the stability of a cluster is the sum over its points of the
    lambda at which the point leaves, less that at which the cluster begins. The clusters selected have the greatest sum
    of stabilities among all sets without one inside another; of equal sums, the larger clusters. The one group
    of all points is never selected.

    All that is at one distance happens at once, as in the paper, whatever the order of the points. scikit-learn and the
    package hdbscan merge two groups at a time. They give the same where no two mergers are at one distance, as with
    ``min_samples = 1`` and different distances. A point that two clusters reach at its own core distance is noise here,
    as in the paper; there it joins the cluster that is merged first, and may complete its ``min_cluster_size``.

    Args:
      distances: symmetric ``[n, n]``, >= 0; what is not finite connects nobody, and the diagonal does not count.
      valid: ``[n]`` bool; the others are in no cluster and nobody's neighbours.
      min_cluster_size: >= 2.
      min_samples: k >= 1, the point itself not among its neighbours; at most as many as there are. (scikit-learn counts
        the point, so that its number is larger by one.)

    Returns:
      ``[n]``, of each point the index of its cluster's first member; -1 for points in none, which are noise. There is
      no gradient.

    References:
      Campello, Moulavi and Sander, Density-based clustering based on hierarchical density estimates, 2013; McInnes and
      Healy, Accelerated hierarchical density based clustering, 2017, for clusters that others leave one by one.
    """
    index = jnp.arange(len(valid))
    among = valid[:, None] & valid
    pairs = among | (index[:, None] == index)
    apart = jax.lax.stop_gradient(jnp.where(among & jnp.isfinite(distances), distances, jnp.inf))
    apart = apart.at[jnp.diag_indices(len(valid))].set(0.0)
    core = jnp.sort(apart, axis=1)[:, jnp.clip(valid.sum() - 1, 0, min_samples)]
    gaps = longest_gaps(jnp.maximum(apart, jnp.maximum(core[:, None], core)), valid)
    # Of each point, where it joins those before it: the distances at which single linkage merges groups.
    levels = jnp.sort(jnp.where(among & (index[:, None] > index), gaps, jnp.inf).min(1))
    unit = jnp.where(jnp.isfinite(gaps), gaps, 0.0).max()

    def step(groups: _Groups, level: jax.Array) -> tuple[_Groups, None]:
        rate = jnp.where(level > 0, unit / level, jnp.inf)  # lambda
        together = pairs & (gaps <= level)
        is_cluster = groups.size >= min_cluster_size

        def parts_sum(values: jax.Array) -> jax.Array:
            """Sum over the clusters of which the new group consists."""
            return jnp.where(together & (groups.first == index) & is_cluster, values, 0).sum(1)

        number = parts_sum(jnp.ones_like(index))
        size = together.sum(1)
        begins = (size >= min_cluster_size) & (number != 1)
        stability = groups.lifetimes - groups.size * jnp.where(is_cluster, rate, 0.0)
        selected = is_cluster & (number > 1) & (stability >= groups.within)
        leaving = size - parts_sum(groups.size)
        kept = parts_sum(groups.lifetimes) + jnp.where(leaving > 0, leaving * rate, 0.0)
        inside = parts_sum(jnp.where(number > 1, jnp.maximum(stability, groups.within), groups.within))
        label = jnp.where(selected, groups.first, groups.label)
        return _Groups(jnp.argmax(together, axis=1), size, jnp.where(begins, size * rate, kept), inside, label), None

    zero = jnp.zeros(len(valid), gaps.dtype)
    alone = _Groups(index, jnp.ones_like(index), zero, zero, jnp.full_like(index, -1))
    return jax.lax.scan(step, alone, levels)[0].label
