"""The direction in which weighted clients differ most, from the distances between them alone."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import tree

_ROUNDING = 1e-6  # variances below this share of the largest are those of rounding


class Principal(NamedTuple):
    """The first principal direction of weighted points.

    Attributes:
      deviation: the root of the covariance's largest eigenvalue, in the unit of the distances (scalar).
      along: how far each point lies from the mean along the direction ``[S]``, in the same unit and up to one sign for
        all; 0 for points without weight.
    """

    deviation: jax.Array
    along: jax.Array


def principal(distance: Float[Array, "clients clients"], weight: Float[Array, " clients"]) -> Principal:
    """The principal direction of the covariance ``sum_m w_m (g_m - mu) (g_m - mu)' / sum_m w_m`` around its mean.

    The eigenvalues are those of the ``[S, S]`` matrix of the products of ``sqrt(w_m) (g_m - mu)``, which follow from
    the distances: no vector of the size of the parameters is formed, and points close to each other far from the
    origin lose no digits. Distances are divided by the largest one between points with weight. There is no gradient.
    """
    deviation, along = coordinates(distance, weight, 1)
    return Principal(deviation[0], along[:, 0])


def coordinates(
    distance: Float[Array, "clients clients"], weight: Float[Array, " clients"], number: int
) -> tuple[Float[Array, " number"], Float[Array, "clients number"]]:
    """:func:`principal` of the first ``number`` directions: the deviations, and how far each point lies along each.

    Of each direction the farthest point is on the positive side; one along which the points differ by less than
    rounding counts as 0.
    """
    unit, share, products = _products(distance, weight)
    root = jnp.sqrt(share)
    values, vectors = jnp.linalg.eigh(root[:, None] * products * root)
    values, vectors = values[::-1][:number], vectors[:, ::-1][:, :number]
    deviation = jnp.sqrt(jnp.where(values > _ROUNDING * values[0], values, 0.0))
    along = tree.product(products, root[:, None] * vectors) * tree.inverse(deviation)
    along = jnp.where(weight[:, None] > 0, along, 0.0)
    farthest = jnp.take_along_axis(along, jnp.argmax(jnp.abs(along), axis=0)[None], axis=0)
    return unit * deviation, unit * along * jnp.where(farthest < 0, -1.0, 1.0)


def largest_deviation(distance: Float[Array, "clients clients"], weight: Float[Array, " clients"]) -> Float[Array, ""]:
    """:func:`principal`'s ``deviation`` alone."""
    unit, share, products = _products(distance, weight)
    root = jnp.sqrt(share)
    return unit * jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(root[:, None] * products * root)[-1], 0.0))


def _products(distance: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The unit of length, the normalised weights, and the products of the points' offsets from their mean."""
    distance, weight = jax.lax.stop_gradient((distance, weight))
    present = weight > 0
    among = jnp.where(present[:, None] & present, distance, 0.0)
    unit = among.max()
    square = jnp.square(among * tree.inverse(unit))
    share = weight * tree.inverse(weight.sum())
    mean = (square * share).sum(1)
    return unit, share, (mean[:, None] + mean - square - (share * mean).sum()) / 2
