"""Max pooling over 2x2 windows, whose gradient needs no scatter.

The reference is ``flax.linen.max_pool``, whose gradient takes 2.2 times as long on a CPU
(``scripts/benchmark.py kernels``).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def max_pool(x: Float[Array, "n height width c"]) -> Float[Array, "n height//2 width//2 c"]:
    """Takes the maximum over 2x2 windows at stride 2; an odd last row or column is dropped.

    Among equal entries the gradient goes to the first of the window in row-major order, one valid subgradient.

    Raises:
      ValueError: if ``x`` does not have four axes, or its height or width is below 2.
    """
    if x.ndim != 4 or min(x.shape[1:3]) < 2:
        raise ValueError(f"x.shape={x.shape}: must be [N, H, W, C] with H, W >= 2 to be pooled")
    return _max_pool(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])


@jax.custom_vjp
def _max_pool(x: jax.Array) -> jax.Array:
    return _max_pool_forward(x)[0]


def _max_pool_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    n, h, w, c = x.shape
    window = x.reshape(n, h // 2, 2, w // 2, 2, c)
    a, b, d, e = (window[:, :, i, :, j] for i in (0, 1) for j in (0, 1))
    best = jnp.maximum(jnp.maximum(a, b), jnp.maximum(d, e))
    return best, first_place(best, (a, b, d, e))


def first_place(best: jax.Array, four: Sequence[jax.Array] | jax.Array) -> jax.Array:
    """Place, 0 to 3, of the first of four arrays that equals their maximum ``best``."""
    a, b, d, _ = four
    return jnp.where(a == best, 0, jnp.where(b == best, 1, jnp.where(d == best, 2, 3))).astype(jnp.int32)


def _max_pool_backward(place: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    # One elementwise pass over the large array, without a scatter; only the index of the maximum was kept.
    n, h, w, c = g.shape
    here = jnp.arange(4, dtype=jnp.int32).reshape(1, 1, 2, 1, 2, 1)
    dx = jnp.where(place[:, :, None, :, None] == here, g[:, :, None, :, None], 0)
    return (dx.reshape(n, 2 * h, 2 * w, c),)


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)
