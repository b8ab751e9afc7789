"""RFLBAT: two principal coordinates, and of the clusters there the one whose deltas agree least in direction."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.kernels.distances import pairs
from fedjax_drag.kernels.order_statistics import median_of
from fedjax_drag.ops.kmeans import kmeans
from fedjax_drag.ops.principal import coordinates
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_by_mean
from fedjax_drag.types import Deltas, Params, Scalar, State

_REFERENCES = 5  # uniform samples that the gap statistic is compared with


class rfl_bat(PlainAggregator):
    """Averages the cluster of the most different directions, without those that lie far out.

    With the first two principal coordinates ``x_m`` of the n valid clients' deltas::

        d_m = sum_j ||x_m - x_j||,   A = {m: d_m <= outer median of d}
        k-means divides A into as many clusters as the gap statistic says
        of a cluster: v = median over its m of the mean over its j of cos(g_m, g_j); 1 for a single client
        B = the cluster with the smallest v
        e_m = sum_j in B ||x_m - x_j||,   C = {m in B: e_m <= inner median of e}
        Delta = mean of g_m over C

    Attackers are taken to resemble each other more than honest clients, whose data differ, do.

    Args:
      outer: the paper's epsilon_1, > 0.
      inner: its epsilon_2, > 0.
      max_clusters: the greatest number of clusters, >= 1.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``key``. Metrics: ``selected`` (1 on C, else 0), ``cluster``
      (index, by rising first coordinate; -1 outside A), ``weight`` (1 / |C| on C), ``cosine`` to the update. The choice
      has no gradient.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      0: it prefers clusters whose members disagree, as those of few attackers that send anything do

    Cost:
      3 passes over the deltas, a Gram product (S^2 d operations), k-means with up to max_clusters clusters

    References:
      Wang, Zhai, Zhan and Xia, RFLBAT: a robust federated learning algorithm against backdoor attack, 2022; thresholds,
      five samples, the mean of cosines over all members with themselves, and 1 for a single client as in BackFed and
      other public code. Interpretations: principal components are of all parameters; public code takes all, or the last
      layers. There are at most ten clusters, as in most of it; BackFed has nine at most. The gap statistic is that of
      Tibshirani, Walther and Hastie, 2001, on coordinates scaled to [0, 1]: the smallest k with
      ``Gap(k) >= Gap(k + 1) - s_k+1``; public code sums distances instead of their squares. Clients at a threshold are
      below it, so that equal ones stay.
    """

    outer: Scalar = 10.0
    inner: Scalar = 4.0
    max_clusters: int = 10
    reports = ("selected", "cluster")

    def check(self) -> None:
        checks.positive("outer", self.outer)
        checks.positive("inner", self.inner)
        checks.count("max_clusters", self.max_clusters, 1)

    def combine(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, key: jax.Array, **_: Any
    ) -> Moved:
        del state
        still = jax.lax.stop_gradient(deltas)
        gap_key, key = jax.random.split(key)
        between = pairs(still)
        points = coordinates(between.distance, valid.astype(jnp.float32), min(2, len(valid)))[1]
        points = jnp.pad(points, ((0, 0), (0, 2 - points.shape[1])))  # a client alone
        points = points * tree.inverse(jnp.abs(points).max())  # so that no square overflows
        near = within(points, valid, self.outer)
        number = number_of_clusters(points, near, gap_key, self.max_clusters)
        cluster = kmeans(points, near, key, self.max_clusters, wanted=number).assignment
        members = (cluster == jnp.arange(self.max_clusters)[:, None]) & near
        chosen = members[jnp.argmin(jax.vmap(middle_cosine, (None, 0))(between.cosine, members))]
        return moved_by_mean(params, deltas, within(points, chosen, self.inner), cluster=cluster.astype(jnp.float32))


def within(points: Float[Array, "clients 2"], members: Bool[Array, " clients"], factor: Any) -> Bool[Array, " clients"]:
    """The members whose distances to all members sum to at most ``factor`` times the median of these sums."""
    total = (members * jnp.linalg.norm(points[:, None] - points, axis=-1)).sum(1)
    return members & (total <= factor * median_of(total, members))


def middle_cosine(cosine: Float[Array, "clients clients"], members: Bool[Array, " clients"]) -> Float[Array, ""]:
    """The median of the members' mean cosines; 1 for one member, infinite for none."""
    number = members.sum()
    middle = median_of(tree.product(cosine, tree.uniform_weights(members)), members)
    return jnp.where(number > 1, middle, jnp.where(number == 1, 1.0, jnp.inf))


def number_of_clusters(
    points: Float[Array, "clients 2"], members: Bool[Array, " clients"], key: chex.PRNGKey, most: int
) -> jax.Array:
    """The smallest k with ``Gap(k) >= Gap(k + 1) - s_k+1``, fewer than the members; or ``most``. An int32 scalar."""
    count, number = members.sum(), jnp.arange(1, most + 2)
    low = jnp.where(members[:, None], points, jnp.inf).min(0)
    width = jnp.where(members[:, None], points, -jnp.inf).max(0) - low
    scaled = jnp.where(members[:, None], (points - low) * tree.inverse(width), 0.0)
    uniform = reference_points(key, len(points)) * (width > 0)
    first = jnp.broadcast_to(jnp.arange(len(points)) < count, uniform.shape[:2])

    def inertia(points: jax.Array, present: jax.Array, k: jax.Array) -> jax.Array:
        return kmeans(points, present, jax.random.fold_in(key, k), most + 1, wanted=k).inertia

    samples = jnp.concatenate([scaled[None], uniform]), jnp.concatenate([members[None], first])
    logs = jnp.log(jax.vmap(jax.vmap(inertia, (None, None, 0)), (0, 0, None))(*samples, number))
    gap = jnp.where(number < count, logs[1:].mean(0) - logs[0], jnp.inf)
    slack = jnp.where(number < count, jnp.sqrt(1 + 1 / _REFERENCES) * logs[1:].std(0), 0.0)
    enough = (gap[:-1] >= gap[1:] - slack[1:]) | (number[:-1] >= count - 1)
    return jnp.where(enough.any(), jnp.argmax(enough) + 1, most).astype(jnp.int32)


def reference_points(key: chex.PRNGKey, count: int) -> Float[Array, "references clients 2"]:
    """Uniform points in [0, 1], drawn for each place by itself, so that absent clients change nothing."""
    drawn = lambda place: jax.random.uniform(jax.random.fold_in(key, place), (_REFERENCES, 2), jnp.float32)
    return jax.vmap(drawn, out_axes=1)(jnp.arange(count))
