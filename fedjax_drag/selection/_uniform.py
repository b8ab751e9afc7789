"""Uniform participation: every client is as likely as every other."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.selection._selection import Candidates, Memory, Selected, Selection

FEW = 8
"""Cohorts of at most one in ``FEW`` clients are drawn one by one instead of by a permutation of all clients."""


class uniform(Selection):
    """Draws the cohort uniformly among the clients that can be drawn, without replacement.

    Weights that make a sum over the cohort unbiased are ``n_m`` over the mean of all.

    Returns:
      A :class:`Selection`.

    References:
      McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017, Algorithm 1; the
      weights are those of Scheme II of Li et al., On the convergence of FedAvg on non-IID data, 2020.
    """

    def select(self, key: PRNGKeyArray, memory: Memory, candidates: Candidates, cohort_size: int) -> Selected:
        del memory
        examples, available = candidates.num_examples, candidates.available
        ids = draw_uniformly(key, examples.shape[0], cohort_size, available)
        everybody = jnp.ones(examples.shape, bool) if available is None else available
        mean = tree.inverse(everybody.sum()) * examples.sum(where=everybody)
        return Selected(ids, examples[ids] * tree.inverse(mean))


def draw_uniformly(
    key: PRNGKeyArray, num_clients: int, cohort_size: int, eligible: Bool[Array, " federation"] | None = None
) -> Int[Array, " clients"]:
    """Client ids of a round ``[S]`` int32, uniform without replacement, ascending.

    With full participation it is all clients. Clients outside the mask ``eligible`` ``[M]`` fill up the cohort only
    where those inside are too few; while all clients are eligible, the draw is the same as without a mask.
    """
    if cohort_size == num_clients:
        return jnp.arange(num_clients)
    if cohort_size * FEW <= num_clients:
        ids, enough = _distinct(key, num_clients, cohort_size, eligible)
        return jax.lax.cond(enough, lambda: ids, lambda: _ordered(key, num_clients, cohort_size, eligible))
    return _ordered(key, num_clients, cohort_size, eligible)


def _distinct(
    key: PRNGKeyArray, num_clients: int, cohort_size: int, eligible: Bool[Array, " federation"] | None
) -> tuple[Int[Array, " clients"], Bool[Array, ""]]:
    """The first different and eligible ids among draws with replacement, and whether there were enough of them.

    The time does not depend on the number of clients, unlike that of a permutation.
    """
    drawn = jax.random.randint(key, (2 * cohort_size + 16,), 0, num_clients)
    order = jnp.argsort(drawn, stable=True)
    ascending = drawn[order]
    accepted = jnp.append(True, ascending[1:] != ascending[:-1])  # not drawn earlier
    if eligible is not None:
        accepted &= eligible[ascending]
    accepted = jnp.zeros_like(accepted).at[order].set(accepted)  # in the order in which they were drawn
    count = jnp.cumsum(accepted)
    ids = jnp.where(accepted & (count <= cohort_size), drawn, num_clients)
    return jnp.sort(ids)[:cohort_size], count[-1] >= cohort_size


def _ordered(
    key: PRNGKeyArray, num_clients: int, cohort_size: int, eligible: Bool[Array, " federation"] | None
) -> Int[Array, " clients"]:
    """The first ids of a permutation in which clients that are not eligible come last."""
    order = jax.random.permutation(key, num_clients)
    if eligible is not None:
        order = order[jnp.argsort(~eligible[order], stable=True)]
    return jnp.sort(order[:cohort_size])
