"""What attacks share."""

from typing import Any

import jax


def client_keys(key: jax.Array, client_ids: jax.Array) -> jax.Array:
    """One key for each client ``[S]``, whatever its place in the cohort."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)


def scale_rows(uplink: Any, factor: jax.Array) -> Any:
    """Multiplies everything client m sends by ``factor[m]``; a factor of 1 keeps the bits."""
    return jax.tree.map(lambda x: x * factor.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype), uplink)
