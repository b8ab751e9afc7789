"""What attacks share."""

from typing import Any

import jax
import jax.numpy as jnp


def client_keys(key: jax.Array, client_ids: jax.Array) -> jax.Array:
    """One key for each client ``[S]``, whatever its place in the cohort."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)


def scale_malicious(uplink: Any, malicious: jax.Array, factor: Any) -> Any:
    """Multiplies all that malicious clients send by ``factor``, ``[S]`` or scalar; the others keep their bits."""
    factor = jnp.broadcast_to(factor, malicious.shape)

    def leaf(x):
        shape = (-1, *[1] * (x.ndim - 1))
        return jnp.where(malicious.reshape(shape), x * factor.reshape(shape).astype(x.dtype), x)

    return jax.tree.map(leaf, uplink)
