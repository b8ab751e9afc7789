"""Agglomerative clustering: complete or average linkage down to two groups, single linkage up to a majority."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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
