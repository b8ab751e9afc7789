"""Arithmetic on pytrees, and on the rows of stacked ones."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedjax_drag.types import Deltas, Params

EXACT = jax.lax.Precision.HIGHEST  # a product in full float32, also where the hardware offers less


def zeros_like(tree: Any) -> Any:
    """A pytree of zeros."""
    return jax.tree.map(jnp.zeros_like, tree)


def add(a: Any, b: Any) -> Any:
    """``a + b``."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: Any, b: Any) -> Any:
    """``a - b``."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(factor: Any, tree: Any) -> Any:
    """``factor * tree`` for a scalar factor."""
    return jax.tree.map(lambda x: factor * x, tree)


def move(params: Params, update: Params) -> Params:
    """``params + update`` in the dtype of ``params``."""
    return jax.tree.map(lambda p, u: (p + u).astype(jnp.result_type(p)), params, update)


def where(condition: Any, a: Any, b: Any) -> Any:
    """``a`` where the scalar ``condition`` holds, else ``b``; the one not taken may be non-finite."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def take(tree: Any, rows: jax.Array) -> Any:
    """Rows of a stacked pytree: ``[M, *p]`` and indices ``[S]`` to ``[S, *p]``."""
    return jax.tree.map(lambda x: x[rows], tree)


def expand(per_client: Any, stacked: Any) -> Any:
    """``[S]`` as ``[S, 1, ..., 1]``, with as many axes as the leaf ``stacked`` ``[S, *p]``, to multiply or mask it."""
    return per_client.reshape(-1, *[1] * (stacked.ndim - 1))


def accurate(x: Any) -> Float[Array, "..."]:
    """``x`` in the dtype that statistics accumulate in: at least float32."""
    return jnp.asarray(x).astype(jnp.promote_types(jnp.result_type(x), jnp.float32))


def product(a: Shaped[Array, "..."], b: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """``a @ b`` in full float32: unless asked, a GPU rounds the factors to ten bits and a TPU to seven."""
    return jnp.dot(a, b, precision=EXACT)


def inverse(x: Any) -> Float[Array, "..."]:
    """``1 / x``, and 0 where ``x`` is 0: a term divided by a zero norm vanishes."""
    safe = jnp.where(x != 0, x, 1)
    return jnp.where(x != 0, _reciprocal(safe) if jnp.issubdtype(safe.dtype, jnp.floating) else 1 / safe, 0)


@jax.custom_jvp
def _reciprocal(x: jax.Array) -> jax.Array:
    return 1 / x


@_reciprocal.defjvp
def _reciprocal_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    per = _reciprocal(*primals)
    return per, -(tangents[0] * per) * per  # the inverse of a square overflows at lengths below 1e-19


def cohort_size(deltas: Deltas) -> int:
    """Length S of the common leading axis.

    Raises:
      ValueError: if there are no leaves, or leaves disagree about S.
    """
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(deltas)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(f"deltas with leading axes {sizes or '{}'}: every leaf needs the same leading client axis [S]")
    return sizes.pop()[0]


def flat_rows(leaf: jax.Array) -> jax.Array:
    """``[S, *p]`` as a matrix with a row for each client, in accumulation precision."""
    return accurate(leaf).reshape(leaf.shape[0], -1)


def axes_of_params(leaf: jax.Array) -> tuple[int, ...]:
    """The axes of ``[S, *p]`` but the first."""
    return tuple(range(1, leaf.ndim))


def sum_rows(leaf: jax.Array) -> Shaped[Array, " clients"]:
    """Sums of ``[S, *p]`` over all axes but the first.

    An accelerator keeps the axes: devices among which several are divided would have to gather flat rows.
    """
    flat = lambda leaf: leaf.reshape(len(leaf), -1).sum(1)
    return jax.lax.platform_dependent(leaf, cpu=flat, default=lambda leaf: leaf.sum(axes_of_params(leaf)))


def single(deltas: Deltas) -> Params:
    """The delta of a client by itself, ``[1, *p]`` to ``[*p]``."""
    return jax.tree.map(lambda leaf: accurate(leaf[0]), deltas)


def row_sums(term: Callable[..., jax.Array], deltas: Deltas, *others: Any) -> Shaped[Array, " clients"]:
    """Sum over the coordinates of ``term(delta, *others)``, elementwise, for each client."""
    per_leaf = jax.tree.map(lambda leaf, *rest: term(leaf, *rest).sum(axes_of_params(leaf)), deltas, *others)
    return functools.reduce(jnp.add, jax.tree.leaves(per_leaf))


@jax.custom_jvp
def stored(tree: Any) -> Any:
    """The same numbers, computed once: whatever reads them sees the same bits.

    Otherwise a compiler may compute a number anew for each of its readers, and round it differently: it contracts a
    product with the sum that follows into one operation for one of them and not for another. What compares a number
    with one that was found among the same numbers, such as an order statistic or a maximum, must compare stored ones.
    It takes a pass over the numbers. XLA on CPU drops ``jax.lax.optimization_barrier``, but not a loop whose length it
    does not know.
    """
    return jax.lax.platform_dependent(tree, cpu=_through_a_loop, default=jax.lax.optimization_barrier)


@stored.defjvp
def _stored_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return stored(*primals), tangents[0]


def _through_a_loop(tree: Any) -> Any:
    first = jax.tree.leaves(tree)[0].reshape(-1)[:1]
    largest = jnp.finfo(first.dtype).max if jnp.issubdtype(first.dtype, jnp.floating) else jnp.iinfo(first.dtype).max
    turns = 1 + (first == largest).sum()  # one; two would do no harm
    return jax.lax.fori_loop(0, turns, lambda _, before: tree, jax.tree.map(jnp.zeros_like, tree))
