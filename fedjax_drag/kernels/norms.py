"""Norms, cosines and angles of whole models, for lengths at which squares under- or overflow too.

A CPU looks whether squares are safe and measures again where they are not: in as long as the :func:`reference` takes,
1 / 20 of what accelerators do in one pass (``scripts/benchmark.py kernels``).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag.kernels.arithmetic import (
    accurate,
    axes_of_params,
    cohort_size,
    expand,
    flat_rows,
    inverse,
    product,
    row_sums,
    scale,
    single,
    sum_rows,
)
from fedjax_drag.types import Deltas, Params

SAFE_SQUARES = (1e-20, 1e30)  # sums of squares within which float32 neither under- nor overflows

_SUMMABLE = 2.0**24  # how many messages of the greatest accepted length can be added up without overflow


def reference(deltas: Deltas) -> Float[Array, " clients"]:
    """What :func:`norms` computes of deltas whose squares neither under- nor overflow."""
    return jnp.sqrt(row_sums(jnp.square, jax.tree.map(accurate, deltas)))


def norms(deltas: Deltas) -> Float[Array, " clients"]:
    """Euclidean norm of each client's delta ``[S]``; 0 for a row that has no finite norm."""
    return _measure(deltas)[0]


@jax.custom_jvp
def norm(tree: Any) -> Float[Array, ""]:
    """Euclidean norm over all leaves together (scalar); 0 if that is not a finite number."""
    leaves = [accurate(leaf) for leaf in jax.tree.leaves(tree)]
    largest = _largest_of(leaves)
    usable = jnp.isfinite(largest) & (largest > 0)
    unit, per_unit = _unit_of(jnp.where(usable, largest, 1.0))
    total = sum(jnp.square(leaf * per_unit).sum() for leaf in leaves)
    return _length(usable, unit, total)


@norm.defjvp
def _norm_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[jax.Array, jax.Array]:
    length = norm(*primals)
    along = [(x * inverse(length) * change).sum() for x, change in _moving(*primals, *tangents)]
    return length, sum(along, jnp.zeros_like(length)).astype(length.dtype)


def _moving(tree: Any, change: Any) -> list[tuple[jax.Array, jax.Array]]:
    """The leaves that have a derivative, and their changes; 0 for what is not finite, 0 times which would be NaN."""
    leaves = zip(map(accurate, jax.tree.leaves(tree)), jax.tree.leaves(change), strict=True)
    return [(jnp.where(jnp.isfinite(x), x, 0), accurate(dx)) for x, dx in leaves if dx.dtype != jax.dtypes.float0]


def is_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every entry of every leaf is finite (bool scalar); there must be a leaf."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


def finite_rows(deltas: Deltas) -> Bool[Array, " clients"]:
    """Which clients' deltas are finite in every entry, ``[S]`` bool."""
    return jnp.isfinite(_measure(deltas)[1])


def usable_rows(deltas: Deltas) -> Bool[Array, " clients"]:
    """Which clients' deltas a rule can compute with, ``[S]`` bool: finite, and of a norm that leaves room for sums.

    A row of d numbers is usable if its largest absolute entry times ``sqrt(d)``, which its norm does not exceed, is at
    most ``max / 2^24``, with the largest number ``max`` of the accumulation dtype: 2.0e31 in float32. Sums of 2^24 such
    rows, and differences of two, are finite then, and norms and their inverses lose nothing to over- or underflow.
    """
    leaves = jax.tree.leaves(deltas)
    numbers = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    longest = min(float(jnp.finfo(accurate(leaf).dtype).max) for leaf in leaves) / _SUMMABLE
    return _measure(deltas)[1] * math.sqrt(numbers) <= longest


def cosines(deltas: Deltas, reference: Params) -> Float[Array, " clients"]:
    """Cosine of each client's delta with ``reference``, ``[S]`` in [-1, 1].

    0 where either vector is zero or has no finite norm, or one above 8.5e37, whose inverse float32 takes for zero.
    """
    row_norms, reference_norm = norms(deltas), norm(reference)
    # Against a unit vector no product exceeds the row's norm, so the rows need no scaling: one matmul each.
    unit = jax.tree.map(lambda r: accurate(r) * inverse(reference_norm), reference)
    products = _products(deltas, unit)
    usable = (row_norms > 0) & (reference_norm > 0)
    return jnp.where(usable, jnp.clip(products * inverse(row_norms), -1.0, 1.0), 0.0)


def unit_rows(x: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """Rows at length 1, however short or long they are; zeros, with gradient 0, where they are zeros."""
    largest = jax.lax.stop_gradient(jnp.abs(x).max(-1, keepdims=True))
    some = largest > 0
    scaled = x / jnp.where(some, largest, 1)
    return jnp.where(some, scaled * jax.lax.rsqrt(jnp.where(some, jnp.square(scaled).sum(-1, keepdims=True), 1)), 0)


@jax.custom_jvp
def _products(deltas: Deltas, other: Params) -> Float[Array, " clients"]:
    """Inner product of each client's delta with ``other`` ``[S]``, in which no sum may overflow."""
    if cohort_size(deltas) == 1:
        pairs = jax.tree.map(lambda d, u: (d * u).sum()[None], single(deltas), other)
        return functools.reduce(jnp.add, jax.tree.leaves(pairs))

    def as_product(deltas: Deltas, other: Params) -> jax.Array:
        leaves = jax.tree.map(lambda d, u: product(flat_rows(d), u.reshape(-1)), deltas, other)
        return functools.reduce(jnp.add, jax.tree.leaves(leaves))

    in_one_pass_with_norms = functools.partial(row_sums, lambda d, u: accurate(d) * u)
    return jax.lax.platform_dependent(deltas, other, cpu=as_product, default=in_one_pass_with_norms)


@_products.defjvp
def _products_jvp(primals: tuple[Deltas, Params], tangents: tuple[Deltas, Params]) -> tuple[jax.Array, jax.Array]:
    (deltas, other), (of_deltas, of_other) = primals, tangents
    # In the gradient by the other, a client that does not count is 0 times what it sent.
    finite = jax.tree.map(lambda d: jnp.where(jnp.isfinite(d), d, 0), deltas)
    return _products(deltas, other), _products(of_deltas, other) + _products(finite, of_other)


def angles(deltas: Deltas, reference: Params) -> Float[Array, " clients"]:
    """Angle of each client's delta with ``reference`` in radians, ``[S]`` in [0, pi].

    pi/2 where either vector is zero or not finite; up to norms of 8.5e37, as in :func:`cosines`. Accurate to full
    precision at both ends, where the arc cosine of a rounded cosine is not: ``2 atan2(|a - b|, |a + b|)`` for unit
    vectors a and b.
    """
    row_norms, reference_norm = norms(deltas), norm(reference)
    unit = scale(inverse(reference_norm), jax.tree.map(accurate, reference))
    usable = (row_norms > 0) & (reference_norm > 0)
    units = jax.tree.map(lambda d: jnp.where(expand(usable, d), accurate(d), 0) * expand(inverse(row_norms), d), deltas)

    def from_unit(sign: int) -> jax.Array:  # as far from either where there is no angle
        return jnp.where(usable, norms(jax.tree.map(lambda d, u: d + sign * u, units, unit)), 1.0)

    return 2 * jnp.arctan2(from_unit(-1), from_unit(1))


@jax.custom_jvp
def _measure(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """Each row's norm ``[S]``, 0 if that is not finite, and a bound on its entries ``[S]``: one pass as a rule.

    The bound is the largest absolute entry, infinite if any entry is not finite, or, where squares are safe, the norm.
    """
    if cohort_size(deltas) == 1:
        alone = single(deltas)
        return norm(alone)[None], _largest_of(alone)[None]
    return jax.lax.platform_dependent(deltas, cpu=_measure_twice, default=_measure_once)


@_measure.defjvp
def _measure_jvp(primals: tuple[Deltas], tangents: tuple[Deltas]) -> tuple[tuple[jax.Array, jax.Array], Any]:
    length, bound = _measure(*primals)
    along = [sum_rows(x * expand(inverse(length), x) * change) for x, change in _moving(*primals, *tangents)]
    return (length, bound), (sum(along, jnp.zeros_like(length)).astype(length.dtype), jnp.zeros_like(bound))


def _measure_twice(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """:func:`_measure` with more passes where squares are not safe."""
    squares, safe = _squares(deltas)

    def plain() -> tuple[jax.Array, jax.Array]:
        lengths = jnp.sqrt(squares)
        return lengths, lengths

    def scaled() -> tuple[jax.Array, jax.Array]:
        largest = _largest(deltas)
        usable = jnp.isfinite(largest) & (largest > 0)
        unit, per_unit = _unit_of(jnp.where(usable, largest, 1.0))
        total = sum(jnp.square(flat_rows(leaf) * per_unit[:, None]).sum(1) for leaf in jax.tree.leaves(deltas))
        return _length(usable, unit, total), largest

    # One function for both answers, so that XLA sees one conditional where a rule asks for both.
    return jax.lax.cond(safe, plain, scaled)


def _measure_once(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """:func:`_measure` in one pass, always: squares in three units, one of which is safe for the row (Blue, 1978)."""
    dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(deltas)), jnp.float32)
    long = 2.0 ** (jnp.finfo(dtype).maxexp // 2 + 6)
    short = 1 / long

    def squares_in(unit: float) -> jax.Array:
        return row_sums(lambda leaf: jnp.square(leaf.astype(dtype) * (1 / unit)), deltas)

    plain = squares_in(1.0)
    too_long, too_short = ~(plain < SAFE_SQUARES[1]), plain < SAFE_SQUARES[0]  # the former also if they are NaN
    squares = jnp.where(too_long, squares_in(long), jnp.where(too_short, squares_in(short), plain))
    unit = jnp.where(too_long, long, jnp.where(too_short, short, 1.0)).astype(dtype)
    largest = [accurate(_magnitudes(leaf).max(axes_of_params(leaf), initial=0.0)) for leaf in jax.tree.leaves(deltas)]
    bound = functools.reduce(jnp.maximum, largest)
    return _length(jnp.isfinite(bound) & (bound > 0), unit, squares), bound


def _squares(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """Each row's sum of squares ``[S]``, and whether all are finite and far from under- and overflow (scalar)."""
    first, *rest = [jnp.square(flat_rows(leaf)).sum(1) for leaf in jax.tree.leaves(deltas)]
    squares = sum(rest, first)
    return squares, ((squares > SAFE_SQUARES[0]) & (squares < SAFE_SQUARES[1])).all()


def _largest(deltas: Deltas) -> jax.Array:
    """Largest absolute entry of each row ``[S]``; infinite if any entry is not finite."""
    largest = [jnp.max(_magnitudes(flat_rows(leaf)), axis=1, initial=0.0) for leaf in jax.tree.leaves(deltas)]
    return jnp.stack(largest).max(0)


def _largest_of(tree: Any) -> jax.Array:
    """Largest absolute entry of all leaves (scalar); infinite if any entry is not finite."""
    largest = [jnp.max(_magnitudes(accurate(leaf)), initial=0.0) for leaf in jax.tree.leaves(tree)]
    return jnp.stack(largest).max()


def _magnitudes(x: jax.Array) -> jax.Array:
    """``|x|``, infinite where ``x`` is NaN, which XLA:CPU leaves out of a maximum over some thousand numbers."""
    return jnp.where(jnp.isnan(x), jnp.inf, jnp.abs(x))


def _unit_of(largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A length by which entries up to ``largest`` > 0 are divided before they are squared, and its inverse.

    That is ``largest`` itself, but at most the largest number whose inverse is not subnormal: XLA flushes subnormal
    numbers to zero, and every length above it would be measured as 0.
    """
    unit = jnp.minimum(largest, 1 / jnp.finfo(largest.dtype).tiny)
    return unit, inverse(unit)


def _length(usable: jax.Array, unit: jax.Array, squares: Any) -> jax.Array:
    """``unit * sqrt(squares)``; 0 where that is not ``usable``, or more than the largest number."""
    length = unit * jnp.sqrt(jnp.where(usable, squares, 1.0))
    return jnp.where(usable & (length < jnp.inf), length, 0.0)
