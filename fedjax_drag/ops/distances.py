"""Inner products and distances between the clients' deltas."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import tree
from fedjax_drag.types import Deltas

_BLOCK = 16384  # coordinates per product: XLA:CPU multiplies a tall matrix by its transpose 3 x faster in pieces
_CANCELLED = 0.1  # below this share of |x|^2 + |y|^2 a squared distance has lost digits to cancellation


@jax.custom_vjp
def gram(deltas: Deltas, scale: Float[Array, " clients"]) -> Float[Array, "clients clients"]:
    """Inner products ``scale_i scale_j <g_i, g_j>`` of all pairs, ``[S, S]``, in one pass and little memory.

    Args:
      deltas: ``[S, *p]``.
      scale: a factor for each row ``[S]``, such as the inverse norm, so that nothing overflows; a row of scale 0 is
        absent, even where it is not finite.

    Returns:
      ``[S, S]`` in accumulation precision. Its derivative is of reverse mode only.
    """

    def product(block: jax.Array) -> jax.Array:
        rows = jnp.where(scale[:, None] != 0, scale[:, None] * tree.accurate(block), 0.0)
        return jax.lax.dot_general(rows, rows, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST)

    def leaf_gram(leaf: jax.Array) -> jax.Array:
        flat = leaf.reshape(leaf.shape[0], -1)
        whole = flat.shape[1] // _BLOCK

        def add(total: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
            return total + product(jax.lax.dynamic_slice_in_dim(flat, k * _BLOCK, _BLOCK, axis=1)), None

        rest = product(flat[:, whole * _BLOCK :])
        return jax.lax.scan(add, rest, jnp.arange(whole))[0] if whole else rest

    products = [leaf_gram(leaf) for leaf in jax.tree.leaves(deltas)]
    return sum(products[1:], products[0])


def _gram_forward(deltas: Deltas, scale: jax.Array) -> tuple[jax.Array, Any]:
    products = gram(deltas, scale)
    return products, (deltas, scale, products)


def _gram_backward(saved: Any, slope: jax.Array) -> tuple[Deltas, jax.Array]:
    deltas, scale, products = saved
    slope = slope + slope.T
    back = tree.mix(scale[:, None] * slope * scale, deltas)
    return _like(back, deltas), (slope * products).sum(1) * tree.inverse(scale)


gram.defvjp(_gram_forward, _gram_backward)


@jax.custom_vjp
def distances(deltas: Deltas) -> Float[Array, "clients clients"]:
    """``||g_i - g_j||`` for all pairs ``[S, S]``, symmetric; rows that are not finite have distance 0 to all.

    From the inner products of unit rows, ``d^2 = |x|^2 + |y|^2 - 2 |x||y| cos``: one pass, and the length of a
    row does not affect other pairs. It loses digits where two rows are close to each other, and a rule would then pick
    the wrong client. So rows linked by such pairs form groups, and the groups are measured again from one of their
    members, ``g_i - g_pivot``, until no pair is left in doubt. A common offset, or clients that are equal, cost one or
    two more products, adversarial input at most S. Relative error about 1e-6 in float32.

    The derivative is of reverse mode only, 0 for clients that are equal, and loses digits where a difference is small
    beside the deltas.
    """
    size = tree.cohort_size(deltas)
    finite = tree.finite_rows(deltas)
    everybody, itself = jnp.ones((size, size), bool), jnp.eye(size, dtype=bool)

    def in_doubt(distance: jax.Array, extent: jax.Array) -> jax.Array:
        return (distance < jnp.sqrt(_CANCELLED) * extent) & ~itself

    def refine(now: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        distance, extent, level = now
        group = _components(in_doubt(distance, extent) | itself)

        def from_pivot(leaf: jax.Array) -> jax.Array:
            values = jnp.where(tree.expand(finite, leaf), tree.accurate(leaf), 0.0)
            return values - values[group]

        again, nearer = _from_products(jax.tree.map(from_pivot, deltas))
        better = (group[:, None] == group) & (nearer < extent)
        return jnp.where(better, again, distance), jnp.where(better, nearer, extent), level + 1

    def unfinished(now: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        distance, extent, level = now
        return in_doubt(distance, extent).any() & (level < size)

    distance, extent = _from_products(deltas)
    usable = everybody & finite[:, None] & finite
    start = (jnp.where(usable, distance, 0.0), jnp.where(usable, extent, 0.0), jnp.zeros((), int))
    # Without the condition the loop would take a copy of the deltas even where it has nothing to do.
    return jax.lax.cond(unfinished(start), lambda: jax.lax.while_loop(unfinished, refine, start), lambda: start)[0]


def _distances_forward(deltas: Deltas) -> tuple[jax.Array, Any]:
    distance = distances(deltas)
    return distance, (deltas, distance)


def _distances_backward(saved: Any, slope: jax.Array) -> tuple[Deltas]:
    deltas, distance = saved
    pull = (slope + slope.T) * tree.inverse(distance)
    return (_like(tree.mix(jnp.diag(pull.sum(1)) - pull, deltas), deltas),)


distances.defvjp(_distances_forward, _distances_backward)


def _from_products(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """Distances by the cosine rule, and ``sqrt(|x|^2 + |y|^2)``, to which their error is relative; both ``[S, S]``."""
    length = tree.norms(deltas)
    largest = jnp.finfo(length.dtype).max / 4
    length = jnp.minimum(length, largest)
    cosine = gram(deltas, tree.inverse(length))
    longer = jnp.maximum(length[:, None], length)
    a, b = (side * tree.inverse(longer) for side in (length[:, None], length))
    square = jnp.square(a - b) + 2 * a * b * (1 - (cosine + cosine.T) / 2)
    square = jnp.where(jnp.eye(len(length), dtype=bool), 0.0, jnp.maximum(square, 0.0))
    return longer * jnp.sqrt(square), longer * jnp.sqrt(jnp.square(a) + jnp.square(b))


def _components(linked: jax.Array) -> jax.Array:
    """The smallest index that each node is connected to, ``[S]``, for a symmetric ``linked`` with a true diagonal."""

    def spread(now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        label, _ = now
        lower = jnp.where(linked, label, len(label)).min(1)
        return lower, (lower != label).any()

    start = jnp.arange(len(linked)), jnp.ones((), bool)
    return jax.lax.while_loop(lambda now: now[1], spread, start)[0]


def _like(values: Deltas, deltas: Deltas) -> Deltas:
    return jax.tree.map(lambda value, leaf: value.astype(leaf.dtype), values, deltas)
