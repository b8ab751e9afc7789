"""Order statistics over the client axis, coordinate by coordinate.

XLA's sort along the client axis is slow on CPU (7 to 28 times NumPy). A network of compare-exchanges,
elementwise minima and maxima, fuses into a single pass over the deltas.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import tree
from fedjax_drag.types import Deltas, Params

_LARGEST_INLINE = 16  # rows; up to here a network for each leaf compiles quickly
_LARGEST_NETWORK = 128  # rows; beyond, the program grows too long and the library's sort takes over


@functools.cache
def exchange_network(size: int) -> tuple[tuple[int, int], ...]:
    """Pairs (low, high) of Batcher's odd-even merge sort for ``size`` inputs, in order."""
    pairs = []
    block = 1
    while block < size:
        gap = block
        while gap >= 1:
            for first in range(gap % block, size - gap, 2 * gap):
                for low in range(first, first + min(gap, size - first - gap)):
                    if low // (2 * block) == (low + gap) // (2 * block):
                        pairs.append((low, low + gap))
            gap //= 2
        block *= 2
    return tuple(pairs)


def coordinate_blocks(deltas: Deltas) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Params]]:
    """The deltas as blocks of coordinates ``[S, d]``, and the way back from one ``[d]`` for each block.

    A block is a leaf while the network is short. A long network takes seconds to compile, so then all leaves are
    copied into a single block, for which it is compiled once.
    """
    leaves, structure = jax.tree.flatten(deltas)
    size = tree.cohort_size(deltas)
    flat = [leaf.reshape(size, -1) for leaf in leaves]
    if size > _LARGEST_INLINE:
        flat = [jax.lax.optimization_barrier(jnp.concatenate([tree.accurate(block) for block in flat], axis=1))]

    def restore(blocks):
        pieces = blocks
        if size > _LARGEST_INLINE:
            ends = np.cumsum([leaf[0].size for leaf in leaves])[:-1]
            pieces = jnp.split(blocks[0], ends)
        return structure.unflatten([piece.reshape(leaf.shape[1:]) for piece, leaf in zip(pieces, leaves, strict=True)])

    return flat, restore


def sorted_rows(block: jax.Array, valid: jax.Array) -> list[jax.Array]:
    """The rows of ``block`` ``[S, d]`` sorted coordinate-wise, invalid clients last, as a list of S arrays."""
    size = block.shape[0]
    values = tree.accurate(block)
    rows = [jnp.where(valid[m], values[m], jnp.inf) for m in range(size)]
    if size > _LARGEST_NETWORK:
        return list(jnp.sort(jnp.stack(rows), axis=0))
    for low, high in exchange_network(size):
        rows[low], rows[high] = jnp.minimum(rows[low], rows[high]), jnp.maximum(rows[low], rows[high])
    return rows


def row_at(rows: list[jax.Array], rank: jax.Array) -> jax.Array:
    """``rows[rank]`` for a traced rank, as selections that fuse with what made the rows."""
    chosen = rows[0]
    for index, row in enumerate(rows[1:], start=1):
        chosen = jnp.where(rank == index, row, chosen)
    return chosen
