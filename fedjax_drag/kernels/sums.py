"""Weighted sums over clients, as matrix products where that is fastest.

On a CPU the :func:`reference` takes 3 times as long (``scripts/benchmark.py kernels``).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag.kernels.arithmetic import EXACT, accurate, cohort_size, expand, flat_rows, inverse, product, single
from fedjax_drag.kernels.norms import is_finite
from fedjax_drag.types import Deltas, Params


def reference(weights: Float[Array, " clients"], deltas: Deltas) -> Params:
    """What :func:`weighted_sum` computes of finite deltas."""
    return jax.tree.map(lambda leaf: (expand(weights, leaf) * accurate(leaf)).sum(0), deltas)


def weighted_sum(weights: Float[Array, " clients"], deltas: Deltas) -> Params:
    """``sum_m weights[m] deltas[m]`` in accumulation precision, in one pass over the deltas.

    A client of weight 0 is absent: its entries do not count even where they are not finite.
    """
    if cohort_size(deltas) == 1:
        present = weights[0] != 0
        return jax.tree.map(lambda d: jnp.where(present, weights[0] * jnp.where(present, d, 0), 0), single(deltas))

    def as_product(weights: jax.Array, deltas: Deltas) -> Params:
        return jax.tree.map(lambda leaf: leaf[0], mix(weights[None], deltas))

    def masked(weights: jax.Array, deltas: Deltas) -> Params:
        def leaf_sum(leaf: jax.Array) -> jax.Array:
            weight = expand(weights, leaf)
            return (weight * accurate(jnp.where(weight != 0, leaf, 0))).sum(0)

        return jax.tree.map(leaf_sum, deltas)

    return jax.lax.platform_dependent(weights, deltas, cpu=as_product, default=masked)


def mix(weights: Float[Array, "rows clients"], deltas: Deltas) -> Deltas:
    """Several weighted sums at once, as one matrix product: ``sum_m weights[k, m] deltas[m]``.

    Args:
      weights: ``[K, S]``; a client whose weights are all 0 is absent, even where it is not finite.
      deltas: ``[S, *p]``.

    Returns:
      ``[K, *p]`` in accumulation precision.
    """
    if len(weights) == 1:
        return _if_finite(weights, deltas)
    # A product of several rows is not bound by memory: masking before it costs a CPU nothing.
    return jax.lax.platform_dependent(weights, deltas, cpu=_masked, default=_if_finite)


def _if_finite(weights: jax.Array, deltas: Deltas) -> Deltas:
    """The product, and once more without absent clients if it is not finite: 0 times what is not finite is NaN."""
    # For a single row masking costs ten times the product.
    sums = _product(weights, deltas)
    return jax.lax.cond(is_finite(sums), lambda: sums, lambda: _masked(weights, deltas))


def _masked(weights: jax.Array, deltas: Deltas) -> Deltas:
    present = (weights != 0).any(0)
    return _product(weights, jax.tree.map(lambda leaf: jnp.where(expand(present, leaf), leaf, 0), deltas))


def _product(weights: jax.Array, deltas: Deltas) -> Deltas:
    def leaf_product(leaf: jax.Array) -> jax.Array:
        if leaf.ndim == 1:
            return product(weights, flat_rows(leaf))[:, 0]
        return jnp.tensordot(weights, accurate(leaf), 1, precision=EXACT)

    return jax.tree.map(leaf_product, deltas)


def mean(deltas: Deltas, valid: Bool[Array, " clients"] | None = None) -> Params:
    """Mean over the valid clients, zero if there are none; over all of them without a mask, finite or not."""
    if valid is not None:
        return weighted_sum(uniform_weights(valid), deltas)
    size = cohort_size(deltas)
    return jax.tree.map(lambda row: row[0], _product(jnp.full((1, size), 1 / size), deltas))


def uniform_weights(valid: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """``1 / (number of valid clients)`` on each of them, 0 elsewhere, ``[S]``."""
    return valid * inverse(valid.sum().astype(jnp.float32))
