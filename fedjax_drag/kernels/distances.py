"""Inner products and distances between the clients' deltas.

On a CPU (``scripts/benchmark.py kernels``) one product instead of its tiles takes 3.3 times as long for 100 clients and
400,000 parameters, and 3.7 times for 10. Where three of ten clients have sent the same, the distances take 2.2 times as
long without :func:`_equal_rows`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import tree
from fedjax_drag.kernels.arithmetic import axes_of_params, sum_rows
from fedjax_drag.types import Deltas, Params

_BLOCK = 16384  # coordinates per product
_TILE = 48  # rows per product on CPU beyond as many clients: half of the tiles are the others' transposes
_TILED_BLOCK = 4096
_MOST_TILES = 8  # in a column: their products are unrolled
_CANCELLED = 0.1  # below this share of |x|^2 + |y|^2 a squared distance has lost digits to cancellation


class Pairs(NamedTuple):
    """What is between all pairs of clients.

    Attributes:
      distance: of the deltas ``[S, S]``.
      cosine: of the angle between the deltas ``[S, S]``, in [-1, 1]; 0 where either is zero or not finite.
    """

    distance: jax.Array
    cosine: jax.Array


def reference(deltas: Deltas) -> Float[Array, "clients clients"]:
    """What :func:`distances` computes of deltas that are finite and not extreme; it forms all S^2 differences."""

    def squares(leaf: jax.Array) -> jax.Array:
        rows = tree.stored(tree.accurate(leaf))  # else a delta may differ from itself, and the distances by direction
        apart = rows[:, None] - rows
        return jnp.square(apart).reshape(len(leaf), len(leaf), -1).sum(-1)

    return jnp.sqrt(sum(map(squares, jax.tree.leaves(deltas)), jnp.zeros(())))


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
    return gram_around(None, deltas, scale)


def gram_around(
    center: Params | None, deltas: Deltas, scale: Float[Array, " clients"]
) -> Float[Array, "clients clients"]:
    """:func:`gram` of the offsets ``g_m - center``, which are not stored; without a derivative."""

    def leaf_gram(leaf: jax.Array, *middle: jax.Array) -> jax.Array:
        shift = [row[None] for row in middle]
        # An accelerator's compiler divides the product among its cores, a CPU's does not keep its pieces in cache.
        return jax.lax.platform_dependent(leaf, scale, *shift, cpu=_gram_in_tiles, default=_gram_of)

    products: list[jax.Array] = jax.tree.leaves(jax.tree.map(leaf_gram, deltas, *([] if center is None else [center])))
    return sum(products[1:], products[0])


def _scaled(rows: jax.Array, scale: jax.Array, *shift: jax.Array) -> jax.Array:
    values = tree.accurate(rows) - shift[0] if shift else tree.accurate(rows)
    factor = tree.expand(scale, rows)
    return jnp.where(factor != 0, factor * values, 0.0)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    axes = axes_of_params(a)
    return jax.lax.dot_general(a, b, ((axes, axes), ((), ())), precision=jax.lax.Precision.HIGHEST)


def _gram_of(rows: jax.Array, scale: jax.Array, *shift: jax.Array) -> jax.Array:
    """Inner products of scaled rows ``[S, *p]``, which may be shifted by ``[1, *p]`` before.

    They keep their axes: devices among which several of these are divided would have to gather a flat row.
    """
    scaled = _scaled(rows, scale, *shift)
    return _product(scaled, scaled)


def _gram_in_tiles(rows: jax.Array, scale: jax.Array, *shift: jax.Array) -> jax.Array:
    """:func:`_gram_of` in pieces that stay in cache, each product of two sets of rows once."""
    rows, shift = rows.reshape(len(rows), -1), tuple(x.reshape(1, -1) for x in shift)
    size, width = rows.shape
    tile = max(_TILE, -(-size // (_MOST_TILES * 8)) * 8)
    step = _BLOCK if size <= tile else _TILED_BLOCK
    starts = range(0, size, tile)
    places = [(i, j) for i in range(len(starts)) for j in range(i, len(starts))]

    def tiles(block: list[jax.Array]) -> list[jax.Array]:
        scaled = _scaled(block[0], scale, *block[1:])
        parts = [scaled[start : start + tile] for start in starts]
        return [_product(parts[i], parts[j]) for i, j in places]

    def add(total: list[jax.Array], k: jax.Array) -> tuple[list[jax.Array], None]:
        block = [jax.lax.dynamic_slice_in_dim(x, k * step, step, axis=1) for x in (rows, *shift)]
        return [a + b for a, b in zip(total, tiles(block), strict=True)], None

    whole = width // step
    total = tiles([x[:, whole * step :] for x in (rows, *shift)])
    if whole:
        total = jax.lax.scan(add, total, jnp.arange(whole))[0]
    products = dict(zip(places, total, strict=True))
    each = range(len(starts))
    return jnp.block([[products[i, j] if i <= j else products[j, i].T for j in each] for i in each])


def _gram_forward(deltas: Deltas, scale: jax.Array) -> tuple[jax.Array, Any]:
    products = gram(deltas, scale)
    return products, (deltas, scale, products)


def _gram_backward(saved: Any, slope: jax.Array) -> tuple[Deltas, jax.Array]:
    deltas, scale, products = saved
    slope = slope + slope.T
    back = tree.mix(scale[:, None] * slope * scale, deltas)
    return _like(back, deltas), (slope * products).sum(1) * tree.inverse(scale)


gram.defvjp(_gram_forward, _gram_backward)


def distances(deltas: Deltas) -> Float[Array, "clients clients"]:
    """``||g_i - g_j||`` for all pairs ``[S, S]``, symmetric; rows that are not finite have distance 0 to all.

    See :func:`pairs`.
    """
    return pairs(deltas).distance


def pairs(deltas: Deltas, scale: Float[Array, " clients"] | None = None) -> Pairs:
    """Distances ``||s_i g_i - s_j g_j||`` and cosines of all pairs, from one product.

    From the inner products of unit rows, ``d^2 = |x|^2 + |y|^2 - 2 |x||y| cos``: one pass, and the length of a
    row does not affect other pairs. It loses digits where two rows are close to each other, and a rule would then pick
    the wrong client. So rows linked by such pairs form groups, and the groups are measured again from one of their
    members, ``g_i - g_pivot``, until no pair is left in doubt. Clients that are equal cost a comparison, a common
    offset one or two more products, adversarial input at most S. Relative error about 1e-6 in float32; rows that are
    not finite have distance 0 to all.

    The derivative is of reverse mode only, 0 for clients that are equal, and loses digits where a difference is small
    beside the deltas.

    Args:
      deltas: ``[S, *p]``.
      scale: a factor for each row ``[S]``, such as the inverse norm; default 1.
    """
    length = _lengths(deltas)
    cosine = gram(deltas, tree.inverse(length))
    cosine = (cosine + cosine.T) / 2
    factor = jnp.ones_like(length) if scale is None else tree.stored(scale.astype(length.dtype))
    distance = _distances(deltas, factor, *jax.lax.stop_gradient((length, cosine)))
    return Pairs(distance, jnp.clip(cosine, -1.0, 1.0))


@jax.custom_vjp
def _distances(deltas: Deltas, scale: jax.Array, length: jax.Array, cosine: jax.Array) -> jax.Array:
    """The distances of :func:`pairs`, given the rows' lengths and cosines."""
    size, finite = tree.cohort_size(deltas), tree.finite_rows(deltas)

    def refine(now: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        distance, extent, level = now
        group = _groups_in_doubt(distance, extent)
        again, nearer = _from_pivots(deltas, scale, finite, group)
        better = (group[:, None] == group) & (nearer < extent)
        return jnp.where(better, again, distance), jnp.where(better, nearer, extent), level + 1

    def without_equals(distance: jax.Array, extent: jax.Array) -> tuple[jax.Array, jax.Array]:
        group = _groups_in_doubt(distance, extent)
        same = _equal_rows(deltas, group) & (scale == scale[group])
        equal = (group[:, None] == group) & same[:, None] & same
        return jnp.where(equal, 0.0, distance), jnp.where(equal, 0.0, extent)

    def unfinished(now: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        distance, extent, level = now
        return _in_doubt(distance, extent).any() & (level < size)

    distance, extent = _by_cosine_rule(scale * length, cosine)
    usable = finite[:, None] & finite
    start = (jnp.where(usable, distance, 0.0), jnp.where(usable, extent, 0.0), jnp.zeros((), int))

    def measured() -> tuple[jax.Array, jax.Array, jax.Array]:
        # Colluding attackers send one message. On a CPU a comparison takes a fraction of a measurement.
        distance, extent, level = start
        distance, extent = jax.lax.platform_dependent(
            distance, extent, cpu=without_equals, default=lambda *as_they_are: as_they_are
        )
        return jax.lax.while_loop(unfinished, refine, (distance, extent, level))

    # Without the condition the loop would take a copy of the deltas even where it has nothing to do.
    return jax.lax.cond(unfinished(start), measured, lambda: start)[0]


def _distances_forward(deltas: Deltas, scale: jax.Array, *known: jax.Array) -> tuple[jax.Array, Any]:
    distance = _distances(deltas, scale, *known)
    return distance, (deltas, scale, distance)


def _distances_backward(saved: Any, slope: jax.Array) -> tuple[Deltas, jax.Array, None, None]:
    deltas, scale, distance = saved
    pull = (slope + slope.T) * tree.inverse(distance)
    back = tree.mix((jnp.diag(pull.sum(1)) - pull) * scale, deltas)  # by the scaled rows

    def along(leaf: jax.Array, change: jax.Array) -> jax.Array:
        product = jnp.where(change != 0, tree.accurate(leaf) * change, 0.0)
        return sum_rows(product)

    by_scale = sum(jax.tree.leaves(jax.tree.map(along, deltas, back)), jnp.zeros_like(scale))
    back = jax.tree.map(lambda change: tree.expand(scale, change) * change, back)
    return _like(back, deltas), by_scale, None, None


_distances.defvjp(_distances_forward, _distances_backward)


def _in_doubt(distance: jax.Array, extent: jax.Array) -> jax.Array:
    """Pairs of two rows so close to each other that their distance has lost digits, ``[S, S]``."""
    return (distance < jnp.sqrt(_CANCELLED) * extent) & ~jnp.eye(len(distance), dtype=bool)


def _groups_in_doubt(distance: jax.Array, extent: jax.Array) -> jax.Array:
    """The pivot of each row, ``[S]``: the smallest index among those that pairs in doubt link to it."""
    return _components(_in_doubt(distance, extent) | jnp.eye(len(distance), dtype=bool))


def _from_pivots(deltas: Deltas, scale: jax.Array, finite: jax.Array, pivot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Distances, and to what their error is relative, from each row's offset ``s_m g_m - s_pivot g_pivot``."""

    def offset(leaf: jax.Array) -> jax.Array:
        values = tree.expand(scale, leaf) * tree.accurate(leaf)
        values = jnp.where(tree.expand(finite, leaf), values, 0.0)
        return values - values[pivot]

    offsets = jax.tree.map(offset, deltas)
    length = _lengths(offsets)
    return _by_cosine_rule(length, gram(offsets, tree.inverse(length)))


def _equal_rows(deltas: Deltas, others: jax.Array) -> Bool[Array, " clients"]:
    """Whether each row equals the row of index ``others[m]`` in every entry, ``[S]``."""

    def leaf_equal(leaf: jax.Array) -> jax.Array:
        rows = jnp.asarray(leaf).reshape(len(others), -1)  # compared as they are they take three times as long
        return (rows == rows[others]).all(1)

    return jnp.stack([leaf_equal(leaf) for leaf in jax.tree.leaves(deltas)]).all(0)


def _lengths(deltas: Deltas) -> jax.Array:
    """Norms ``[S]``, small enough that the sum of two is finite."""
    length = tree.norms(deltas)
    return jnp.minimum(length, jnp.finfo(length.dtype).max / 4)


def _by_cosine_rule(length: jax.Array, cosine: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Distances by the cosine rule, and ``sqrt(|x|^2 + |y|^2)``, to which their error is relative; both ``[S, S]``."""
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
