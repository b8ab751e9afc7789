"""The largest entries of a delta, over all its leaves together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, UInt

from fedjax_drag import checks
from fedjax_drag.types import Params


def floor_of(share: Any, number: Any) -> Any:
    """``floor(share * number)`` as an integer, traced if one of the two is.

    A product that falls below an integer by rounding alone, as 0.29 * 100 does, counts as that integer. It is the floor
    for the decimal as written if both are plain numbers; traced in float32, products above some thousands may be off by
    one part in a million.
    """
    xnp = np if checks.is_concrete(share) and checks.is_concrete(number) else jnp
    product = xnp.asarray(share * 1.0 * number)
    rounding = xnp.minimum(2 * jnp.finfo(product.dtype).eps * product, 1e-3)
    return xnp.floor(product + rounding).astype(np.int32)


def smallest_of_top(update: Params, share: Any) -> UInt[Array, ""]:
    """The bits of the smallest absolute value among the ``floor(share D)`` largest of D; above all if there are none.

    It is at least 1, so that zeros are below. The bits are those of the widest dtype of the leaves, or of float32.
    """
    leaves = jax.tree.leaves(update)
    wanted = floor_of(share, sum(leaf.size for leaf in leaves))
    of_bits = jnp.dtype(f"uint{8 * jnp.result_type(jnp.float32, *leaves).itemsize}")
    found = reached_by(wanted, of_bits, lambda trial: sum((magnitude(leaf, of_bits) >= trial).sum() for leaf in leaves))
    return jnp.where(wanted > 0, jnp.maximum(found, 1), jnp.full((), jnp.iinfo(of_bits).max, of_bits))


def magnitude(leaf: Float[Array, "..."], of_bits: jnp.dtype) -> Integer[Array, "..."]:
    """Absolute values as integers in their order; NaN is above infinity."""
    return jax.lax.bitcast_convert_type(jnp.abs(leaf.astype(f"float{8 * of_bits.itemsize}")), of_bits)


def reached_by(number: Any, kind: jnp.dtype, reach: Callable[[jax.Array], Any]) -> Integer[Array, ""]:
    """The largest value that so many integers >= 0 reach, found bit by bit, without a sort.

    Args:
      number: how many, which may be traced.
      kind: of the integers, the first bit of which is 0.
      reach: ``(value) -> how many reach it``.
    """
    bits = jnp.iinfo(kind).bits - 1

    def with_bit(place: jax.Array, found: jax.Array) -> jax.Array:
        trial = found | (jnp.ones((), kind) << (bits - 1 - place).astype(kind))
        return jnp.where(reach(trial) >= number, trial, found)

    return jax.lax.fori_loop(0, bits, with_bit, jnp.zeros((), kind))
