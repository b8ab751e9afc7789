"""Random keys by name: one for each purpose, round and client, independent of the order of use."""

import zlib
from typing import Any

import jax
from jaxtyping import PRNGKeyArray


def stream(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """The key of a named purpose; adding another purpose changes no existing draw."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def round_key(key: PRNGKeyArray, name: str, round_index: Any) -> PRNGKeyArray:
    """The key of a named purpose in one round."""
    return jax.random.fold_in(stream(key, name), round_index)


def client_key(key: PRNGKeyArray, name: str, round_index: Any, client_id: Any) -> PRNGKeyArray:
    """The key of a named purpose of one client in one round."""
    return jax.random.fold_in(round_key(key, name, round_index), client_id)
