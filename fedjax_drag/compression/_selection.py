"""Messages of which some coordinates are sent: a message as one vector, and the choice of its largest entries.

The number of entries may be traced, so that one program runs a sweep over it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fedjax_drag import checks, tree
from fedjax_drag.compression._compressor import Message, dense_bytes
from fedjax_drag.ops.largest import reached_by


def num_kept(fraction: Any, size: int) -> Any:
    """``k = max(1, round(fraction d))`` of ``d`` coordinates, at most all of them; int32, traced if ``fraction`` is.

    It is computed in float32, in which a program receives a fraction that is swept.
    """
    xnp = np if checks.is_concrete(fraction) else jnp
    kept = xnp.round(xnp.float32(fraction) * xnp.float32(size)).astype(xnp.int32)
    # All are all, also where the float32 nearest to their number is another one.
    return xnp.clip(xnp.where(fraction >= 1, size, kept), 1, size)


def sparse_bytes(message: Message, fraction: Any, around: int, per_entry: int) -> int:
    """Bytes of a message of which ``k`` values are sent, or of all values, zeros included, if those are no longer.

    Args:
      message: arrays or shapes.
      fraction: of the coordinates that are sent.
      around: bytes beside the entries.
      per_entry: bytes of each entry beside its value.
    """
    leaves = jax.tree.leaves(message)
    size = sum(leaf.size for leaf in leaves)
    value = jnp.result_type(*(leaf.dtype for leaf in leaves)).itemsize
    return min(sum(map(dense_bytes, leaves)), around + int(num_kept(fraction, size)) * (value + per_entry))


def largest(ranks: Int[Array, " coordinates"], number: Any) -> Bool[Array, " coordinates"]:
    """Which entries are the ``number`` largest; of equal ones the first.

    Args:
      ranks: integers >= 0.
      number: how many, from 1 to their number; may be traced.
    """
    ranks = tree.stored(ranks)
    smallest = reached_by(number, ranks.dtype, lambda trial: (ranks >= trial).sum())
    above, equal = ranks > smallest, ranks == smallest
    missing = number - above.sum()

    # As a rule there are no more equal ones than are missing.
    first = jax.lax.cond(equal.sum() > missing, lambda: _first(equal, missing), lambda: equal)
    return above | first


def _first(chosen: Bool[Array, " coordinates"], number: Any) -> Bool[Array, " coordinates"]:
    """The first ``number`` of those that are ``chosen``, of which there are more: where they end is found in bits."""
    places = jnp.arange(chosen.size)
    length = chosen.size.bit_length()

    def add_bit(step: jax.Array, end: jax.Array) -> jax.Array:
        trial = end + jnp.left_shift(1, length - 1 - step)
        return jnp.where((chosen & (places < trial)).sum() <= number, trial, end)

    return chosen & (places < jax.lax.fori_loop(0, length, add_bit, jnp.zeros((), jnp.int32)))
