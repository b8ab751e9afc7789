"""Randomness by name: a key for each purpose, round and client, independent of the order of use."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

FEW = 8
"""Cohorts of at most one in ``FEW`` clients are drawn one by one instead of by a permutation of all clients."""


def stream(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """The key of a named purpose; adding another purpose changes no existing draw."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def round_key(key: PRNGKeyArray, name: str, round_index: Any) -> PRNGKeyArray:
    """The key of a named purpose in one round."""
    return jax.random.fold_in(stream(key, name), round_index)


def client_key(key: PRNGKeyArray, name: str, round_index: Any, client_id: Any) -> PRNGKeyArray:
    """The key of a named purpose of one client in one round."""
    return jax.random.fold_in(round_key(key, name, round_index), client_id)


def cohort(
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
