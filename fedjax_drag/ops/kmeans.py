"""K-means inside a compiled program: careful seeding, Lloyd's iterations, the best of several restarts.

Of numbers on a line, exactly: whether they are one cluster or more, and the two that divide them best.
"""

import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import tree

_RESTARTS = 10  # the smallest inertia wins
_MOST_ITERATIONS = 100  # of Lloyd's algorithm


class KMeans(NamedTuple):
    """A clustering.

    Attributes:
      assignment: index of each point's cluster ``[n]`` int; -1 for absent points.
      centroids: ``[k, d]``; a cluster that no point is in keeps the seed it had.
      inertia: sum of the squared distances of the points to their centroids.
    """

    assignment: jax.Array
    centroids: jax.Array
    inertia: jax.Array


def kmeans(
    points: Float[Array, "points features"],
    valid: Bool[Array, " points"],
    key: chex.PRNGKey,
    num_clusters: int,
    wanted: Any = None,
) -> KMeans:
    """Lloyd's algorithm from greedy k-means++ seeds until no point changes its cluster, the best of several restarts.

    Seeds are drawn by rank and not by place: for a given key, neither the order of the points nor the number of
    absent ones matters. Clusters are numbered by their centroids' first coordinate. With more clusters than different
    points some stay empty. Squared distances are taken of differences, ``[k, n, d]``.

    Args:
      points: ``[n, d]``, few coordinates, of moderate size.
      valid: ``[n]`` bool; the others are absent.
      key: from which the seeds are drawn.
      num_clusters: k.
      wanted: how many of the k clusters there are to be, which may be traced; default all. The others stay empty.

    Returns:
      A :class:`KMeans`, without gradient.

    References:
      Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, 2007.
    """
    points = jax.lax.stop_gradient(jnp.where(valid[:, None], tree.accurate(points), 0.0))
    rank = jnp.lexsort((*points.T[::-1], ~valid))
    sorted_points, present = points[rank], valid[rank]

    def once(draws: jax.Array) -> KMeans:
        seeds = _seeds(sorted_points, present, draws)
        there = jnp.arange(num_clusters) < (num_clusters if wanted is None else wanted)
        seeds = jnp.where(there[:, None], seeds, jnp.inf)
        return _lloyd(sorted_points, present, seeds)

    candidates = 2 + int(math.log(num_clusters))
    results = jax.vmap(once)(jax.random.uniform(key, (_RESTARTS, num_clusters, candidates)))
    best = jax.tree.map(lambda x: x[jnp.argmin(results.inertia)], results)
    empty = ~(best.assignment[None, :] == jnp.arange(num_clusters)[:, None]).any(1)
    order = jnp.lexsort((*best.centroids.T[::-1], empty))
    number = jnp.zeros_like(order).at[order].set(jnp.arange(num_clusters))[best.assignment]
    assignment = jnp.zeros_like(number).at[rank].set(jnp.where(present, number, -1))
    return KMeans(assignment, best.centroids[order], best.inertia)


def _squared_distances(
    points: Float[Array, "points features"], centroids: Float[Array, "clusters features"]
) -> Float[Array, "clusters points"]:
    """``[k, n]``."""
    return jnp.square(centroids[:, None, :] - points[None, :, :]).sum(-1)


def _seeds(points: jax.Array, present: jax.Array, draws: jax.Array) -> jax.Array:
    """Greedy k-means++: each next seed is a point drawn in proportion to its squared distance to the seeds so far.

    Of several such points the one that leaves the least to the others is taken, as in scikit-learn.

    Args:
      points: ``[n, d]``, those that are present first.
      present: ``[n]`` bool.
      draws: ``[k, candidates]`` in [0, 1).
    """

    def drawn(chances: jax.Array, draws: jax.Array) -> jax.Array:
        cumulative = jnp.cumsum(chances)
        places = jnp.searchsorted(cumulative, draws * cumulative[-1], side="right")
        return points[jnp.minimum(places, jnp.maximum(present.sum() - 1, 0))]

    def following(nearest: jax.Array, draws: jax.Array) -> tuple[jax.Array, jax.Array]:
        candidates = drawn(nearest, draws)
        left = jnp.minimum(nearest, _squared_distances(points, candidates))
        best = jnp.argmin(left.sum(1))
        return left[best], candidates[best]

    first = drawn(present.astype(points.dtype), draws[0, :1])
    nearest = jnp.where(present, _squared_distances(points, first)[0], 0.0)
    return jnp.concatenate([first, jax.lax.scan(following, nearest, draws[1:])[1]])


def _lloyd(points: jax.Array, present: jax.Array, seeds: jax.Array) -> KMeans:
    """Moves every centroid to the mean of its points, and every point to its nearest centroid, until none moves."""

    def nearest(centroids: jax.Array) -> jax.Array:
        return jnp.argmin(_squared_distances(points, centroids), axis=0)

    def step(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        centroids, assignment, _, iteration = carry
        members = (assignment == jnp.arange(seeds.shape[0])[:, None]) & present
        size = members.sum(1, keepdims=True)
        means = tree.product(members.astype(points.dtype), points)
        centroids = jnp.where(size > 0, means / jnp.maximum(size, 1), centroids)
        following = nearest(centroids)
        return centroids, following, (following != assignment).any(), iteration + 1

    def unfinished(carry: tuple[jax.Array, ...]) -> jax.Array:
        return carry[2] & (carry[3] < _MOST_ITERATIONS)

    start = (seeds, nearest(seeds), jnp.ones((), bool), jnp.zeros((), int))
    centroids, assignment, _, _ = jax.lax.while_loop(unfinished, step, start)
    inertia = jnp.where(present, _squared_distances(points, centroids).min(0), 0.0).sum()
    return KMeans(assignment, centroids, inertia)


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
