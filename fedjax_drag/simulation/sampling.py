"""Randomness by name: a key for each purpose, round and client, independent of the order of use."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp


def stream(key: jax.Array, name: str) -> jax.Array:
    """The key of a named purpose; adding another purpose changes no existing draw."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def round_key(key: jax.Array, name: str, round_index: Any) -> jax.Array:
    """The key of a named purpose in one round."""
    return jax.random.fold_in(stream(key, name), round_index)


def cohort(key: jax.Array, num_clients: int, cohort_size: int, eligible: jax.Array | None = None) -> jax.Array:
    """Client ids of a round ``[S]`` int32, uniform without replacement, ascending.

    With full participation it is everybody. Clients outside the mask ``eligible`` ``[M]`` fill up the
    cohort only where those inside are too few; while all are inside the draw is the same as without a mask.
    """
    if cohort_size == num_clients:
        return jnp.arange(num_clients)
    order = jax.random.permutation(key, num_clients)
    if eligible is not None:
        order = order[jnp.argsort(~eligible[order], stable=True)]
    return jnp.sort(order[:cohort_size])
