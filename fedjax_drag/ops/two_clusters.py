"""Numbers on a line: whether they are one cluster or more, and the two that divide them best."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_FEWEST = 3  # of fewer numbers every two are two clusters
_REFERENCES = 10  # samples of uniform numbers
_SAME = 1e-4  # numbers whose range is no larger a share of them are equal up to rounding


class _Division(NamedTuple):
    """The squares of one cluster and of the best two, and how many numbers the lower of the two has."""

    one: jax.Array
    two: jax.Array
    lower: jax.Array


def _divided(ordered: Float[Array, " numbers"], count: jax.Array) -> _Division:
    """k-means with k = 1 and 2, exactly, of the first ``count`` numbers, which are in order."""
    present = jnp.arange(len(ordered)) < count

    def add(
        before: tuple[jax.Array, ...], here: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        (number, mean, squares), (value, there) = before, here
        number = number + there
        apart, share = jnp.where(there, value - mean, 0.0), 1 / jnp.maximum(number, 1)
        squares = squares + (1 - share) * jnp.square(apart)
        return (number, mean + share * apart, squares), squares

    # Of all numbers up to each, and of all from each on.
    below, above = (
        jax.lax.scan(add, (jnp.zeros((), int), jnp.zeros(()), jnp.zeros(())), (ordered, present), reverse=reverse)[1]
        for reverse in (False, True)
    )
    split = below[:-1] + above[1:]
    return _Division(below[-1], split.min(), jnp.argmin(split) + 1)


def upper_cluster(
    numbers: Float[Array, " numbers"], counted: Bool[Array, " numbers"], key: chex.PRNGKey
) -> Bool[Array, " numbers"]:
    """The members of the upper one of two clusters, if the gap statistic finds more than one; else nobody.

    With the sum of squares ``W_k`` of k-means with k clusters, of the numbers scaled to [0, 1] and of as many that are
    uniform there, R = 10 times::

        Gap(k) = log mean W_k,ref - log W_k
        s = sqrt(1 + 1 / R) std log W_2,ref
        more than one if Gap(1) < Gap(2) - s

    Args:
      numbers: ``[n]``.
      counted: ``[n]`` bool; the others are in no cluster. Fewer than three numbers are one cluster, and so are
        equal ones.
      key: for the uniform numbers.

    References:
      Tibshirani, Walther and Hastie, Estimating the number of clusters in a data set via the gap statistic, 2001;
      their mean of logarithms is a logarithm of the mean here, as in the code of FLDetector.
    """
    if len(numbers) < _FEWEST:
        return jnp.zeros_like(counted)
    numbers, count = jax.lax.stop_gradient(numbers), counted.sum()
    low = jnp.where(counted, numbers, jnp.inf).min()
    width = jnp.where(counted, numbers, -jnp.inf).max() - low
    order = jnp.argsort(jnp.where(counted, numbers, jnp.inf))
    scaled = jnp.where(counted, (numbers - low) / jnp.where(width > 0, width, 1.0), jnp.inf)[order]
    found = _divided(jnp.where(jnp.isfinite(scaled), scaled, 0.0), count)
    drawn = jax.random.uniform(key, (_REFERENCES, len(numbers)))
    uniform = jnp.sort(jnp.where(jnp.arange(len(numbers)) < count, drawn, 2.0), axis=1)
    expected = jax.vmap(_divided, (0, None))(uniform, count)
    slack = jnp.sqrt(1 + 1 / _REFERENCES) * jnp.log(expected.two).std()
    gap_1 = jnp.log(expected.one.mean()) - jnp.log(found.one)
    gap_2 = jnp.log(expected.two.mean()) - jnp.log(found.two)
    differ = width > _SAME * jnp.abs(jnp.where(counted, numbers, 0.0)).max()
    several = (count >= _FEWEST) & differ & (gap_1 < gap_2 - slack)
    upper = jnp.zeros_like(counted).at[order].set(jnp.arange(len(numbers)) >= found.lower)
    return several & upper & counted
