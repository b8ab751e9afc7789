"""Agglomerative clustering: complete or average linkage to two groups, single linkage to a majority, and HDBSCAN."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def two_groups(
    distances: Float[Array, "clients clients"],
    valid: Bool[Array, " clients"],
    linkage: Literal["complete", "average"] = "complete",
) -> Bool[Array, "2 clients"]:
    """Merges clients until two groups remain.

    The distance of two groups is that of their farthest members, or the average over all pairs of members.

    Chains of nearest neighbours are followed until two groups are each other's nearest, which are merged. Neither
    linkage ever brings merged groups closer to others, so that this finds the groups of the greedy algorithm (always
    merge the closest pair) in ``O(S^2)`` operations instead of ``O(S^3)``. Equal distances are resolved by the order
    of the clients.

    Args:
      distances: symmetric ``[S, S]``, finite between valid clients; the diagonal does not count.
      valid: ``[S]`` bool; the others are in no group.
      linkage: ``"complete"``, by the farthest members, or ``"average"``.

    Returns:
      ``[2, S]`` bool, the members of each group: one is empty if one client is valid, both if there is none. There is
      no gradient.
    """
    size = valid.shape[0]
    index = jnp.arange(size)
    apart = valid[:, None] & valid[None, :] & (index[:, None] != index[None, :])
    gaps = jax.lax.stop_gradient(jnp.where(apart, distances, jnp.inf))

    def joined(rows: jax.Array, pair: jax.Array, group: jax.Array) -> jax.Array:
        if linkage == "complete":
            return rows.max(0)
        share = (group == pair[:, None]).sum(1).astype(rows.dtype)
        share = share / share.sum()
        # Rounding must not bring a group closer to others than its nearer part was, or chains would not end.
        return jnp.maximum(share[0] * rows[0] + share[1] * rows[1], rows.min(0))

    def step(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        gaps, group, chain, length, count = carry
        first = jnp.argmax(valid & (group == index))  # the first group that is left starts an empty chain
        chain = chain.at[0].set(jnp.where(length == 0, first, chain[0]))
        length = jnp.maximum(length, 1)
        before, tip = chain[jnp.maximum(length - 2, 0)], chain[length - 1]
        pair = jnp.stack([before, tip])
        rows = gaps[pair]
        nearest = jnp.argmin(rows[1])
        mutual = (length > 1) & (rows[1, before] <= rows[1, nearest])
        # The tip joins the group before it, or the chain grows by the tip's nearest neighbour.
        rows = jnp.where(mutual, jnp.stack([joined(rows, pair, group), jnp.full(size, jnp.inf)]), rows)
        gaps = gaps.at[pair].set(rows).at[:, pair].set(rows.T)
        group = jnp.where(mutual & (group == tip), before, group)
        chain = chain.at[length].set(nearest)
        return gaps, group, chain, jnp.where(mutual, length - 2, length + 1), count - mutual

    start = (gaps, index, jnp.zeros(size, index.dtype), jnp.zeros((), index.dtype), valid.sum())
    group = jax.lax.while_loop(lambda carry: carry[-1] > 2, step, start)[1]
    one = valid & (group == group[jnp.argmax(valid)])
    return jnp.stack([one, valid & ~one])


def larger_group(
    groups: Bool[Array, "2 clients"], distances: Float[Array, "clients clients"]
) -> Bool[Array, " clients"]:
    """The members ``[S]`` of the larger of two groups; of equally large ones that with the smaller largest distance.

    Both groups if these are equal, as with two clients.
    """
    size = groups.sum(1)
    diameter = jnp.where(groups[:, :, None] & groups[:, None, :], distances, 0.0).max((1, 2))
    ahead = (size > size[::-1]) | ((size == size[::-1]) & (diameter < diameter[::-1]))
    return (groups & ~ahead[::-1, None]).any(0)


def majority_group(
    distances: Float[Array, "clients clients"], valid: Bool[Array, " clients"]
) -> Bool[Array, " clients"]:
    """The first group of more than half of the valid clients when single linkage merges the closest first, ``[S]``.

    Single linkage merges whatever a chain of short gaps connects: with the longest gap of the best chain between each
    pair, a client's radius is that within which more than half of the clients lie. Those of the smallest radius are
    the group.

    Args:
      distances: symmetric ``[S, S]``, finite between valid clients; the diagonal does not count.
      valid: ``[S]`` bool; the others are in no group.
    """
    gaps = longest_gaps(distances, valid)
    radius = jnp.sort(gaps, axis=1)[:, valid.sum() // 2]
    radius = jnp.where(valid, radius, jnp.inf)
    return valid & (radius == radius.min())


def longest_gaps(
    distances: Float[Array, "clients clients"], valid: Bool[Array, " clients"]
) -> Float[Array, "clients clients"]:
    """The longest step of the best chain of valid clients between each pair: where single linkage merges the two.

    Args:
      distances: symmetric ``[S, S]``; the diagonal does not count.
      valid: ``[S]`` bool; nobody else is reached.

    Returns:
      ``[S, S]``, some of the distances; 0 on the diagonal, infinite where there is no chain. There is no gradient.
    """
    size = len(valid)
    apart = jax.lax.stop_gradient(jnp.where(valid[:, None] & valid, distances, jnp.inf))
    apart = jnp.where(jnp.eye(size, dtype=bool), 0.0, apart)

    def through(client: jax.Array, gaps: jax.Array) -> jax.Array:
        return jnp.minimum(gaps, jnp.maximum(gaps[:, client, None], gaps[client]))

    return jax.lax.fori_loop(0, size, through, apart)


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
    """The clusters that exist longest while the distance within which points are connected shrinks, and noise.

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
