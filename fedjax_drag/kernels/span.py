"""Points in the span of the deltas: their distances from inner products, without another pass over the deltas.

A point is given by its coefficients ``z = sum_m w_m g_m``, which sum to 1. With the offsets ``y_m = g_m - c`` from a
point c among the deltas and their inner products K,

    ||g_m - z||^2 = K_mm - 2 (K w)_m + w^T K w.

What is subtracted there is of the size of the offsets, not of the deltas, so that a common part of the deltas costs no
digits. A delta that lies near the point does; :attr:`Span.doubt` tells how many.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import tree
from fedjax_drag.kernels.distances import gram_around
from fedjax_drag.types import Deltas


class Span(NamedTuple):
    """Inner products of the offsets from an origin among the deltas, scaled so that nothing overflows.

    Attributes:
      products: of the offsets, each divided by its bound ``[S, S]``.
      bound: on the lengths of the offsets, in units of ``unit`` ``[S]``; 0 for clients that are absent.
      unit: a typical length of the offsets.
    """

    products: jax.Array
    bound: jax.Array
    unit: jax.Array

    def length(self, change: Float[Array, " clients"]) -> Float[Array, ""]:
        """``||sum_m a_m g_m||`` for coefficients that sum to 0, rounded up by what is uncertain."""
        scaled = change * self.bound
        square = jnp.maximum(tree.product(scaled, tree.product(self.products, scaled)), 0.0)
        rounding = jnp.finfo(square.dtype).eps * jnp.square(tree.product(jnp.abs(change), self._away))
        return self.unit * jnp.sqrt(square + rounding)

    @property
    def _away(self) -> jax.Array:
        """Lengths of the offsets ``[S]``, in units of ``unit``."""
        return self.bound * jnp.sqrt(jnp.maximum(jnp.diagonal(self.products), 0.0))

    def distances(self, weight: Float[Array, " clients"]) -> Float[Array, " clients"]:
        """``||g_m - z||`` for the point z of these coefficients; 1 for clients that are absent."""
        scaled = weight * self.bound
        along = tree.product(self.products, scaled)
        square = jnp.maximum(tree.product(scaled, along), 0.0)
        longer = jnp.maximum(self.bound, jnp.sqrt(square))
        per = tree.inverse(longer)
        own, far = self.bound * per, jnp.sqrt(square) * per
        terms = own * own * jnp.diagonal(self.products) - 2 * own * (along * per) + far * far
        return jnp.where(self.bound > 0, self.unit * longer * jnp.sqrt(jnp.maximum(terms, 0.0)), 1.0)

    def doubt(self, weight: Float[Array, " clients"], distance: Float[Array, " clients"]) -> Float[Array, " clients"]:
        """Relative uncertainty of squared distances to the point of these coefficients, at most 1, ``[S]``."""
        share = (self._away + tree.product(weight, self._away)) * tree.inverse(distance / self.unit)
        share = jnp.where((self.bound > 0) & (distance <= 0), jnp.inf, share)
        return jnp.minimum(jnp.finfo(share.dtype).eps * share * share, 1.0)


def span_around(deltas: Deltas, weight: Float[Array, " clients"]) -> Span:
    """The span of the deltas, with the origin at ``sum_m weight[m] g_m``; without a derivative.

    Args:
      deltas: ``[S, *p]``.
      weight: coefficients ``[S]`` that sum to 1 and become smaller with a delta's length; 0 for absent clients.
    """
    center = tree.weighted_sum(weight, deltas)
    reach = jnp.where(weight > 0, tree.norms(deltas) + tree.norm(center), 0.0)
    unit = jnp.maximum(tree.product(weight, reach), jnp.finfo(reach.dtype).tiny)
    products = gram_around(center, deltas, tree.inverse(reach))
    return Span((products + products.T) / 2, reach / unit, unit)
