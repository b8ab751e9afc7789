"""Agglomerative clustering by complete linkage, down to two groups."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def two_groups(distances: Float[Array, "clients clients"], valid: Bool[Array, " clients"]) -> Bool[Array, "2 clients"]:
    """Merges clients until two groups remain; the distance of two groups is that of their farthest members.

    Chains of nearest neighbours are followed until two groups are each other's nearest, which are merged. Complete
    linkage never brings merged groups closer to others, so that this finds the groups of the greedy algorithm (always
    merge the closest pair) in ``O(S^2)`` operations instead of ``O(S^3)``. Equal distances are resolved by the order
    of the clients.

    Args:
      distances: symmetric ``[S, S]``, finite between valid clients; the diagonal does not count.
      valid: ``[S]`` bool; the others are in no group.

    Returns:
      ``[2, S]`` bool, the members of each group: one is empty if one client is valid, both if there is none. There is
      no gradient.
    """
    size = valid.shape[0]
    index = jnp.arange(size)
    apart = valid[:, None] & valid[None, :] & (index[:, None] != index[None, :])
    gaps = jax.lax.stop_gradient(jnp.where(apart, distances, jnp.inf))

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
        rows = jnp.where(mutual, jnp.stack([rows.max(0), jnp.full(size, jnp.inf)]), rows)
        gaps = gaps.at[pair].set(rows).at[:, pair].set(rows.T)
        group = jnp.where(mutual & (group == tip), before, group)
        chain = chain.at[length].set(nearest)
        return gaps, group, chain, jnp.where(mutual, length - 2, length + 1), count - mutual

    start = (gaps, index, jnp.zeros(size, index.dtype), jnp.zeros((), index.dtype), valid.sum())
    group = jax.lax.while_loop(lambda carry: carry[-1] > 2, step, start)[1]
    one = valid & (group == group[jnp.argmax(valid)])
    return jnp.stack([one, valid & ~one])
