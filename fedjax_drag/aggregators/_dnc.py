"""DnC: leaves out the clients farthest along the direction in which all differ most, on some coordinates."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedjax_drag import checks, tree
from fedjax_drag.kernels.distances import distances
from fedjax_drag.ops.principal import principal
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, moved_by_mean
from fedjax_drag.types import Deltas, Params, Scalar, State


class dnc(ByzantineAggregator):
    """Divide and conquer: averages the clients that are near the mean along the top singular vector.

    ``iterations`` times, on b coordinates drawn anew, with n valid clients::

        mu = mean_m g_m
        v = top right singular vector of the rows g_m - mu
        s_m = <g_m - mu, v>^2
        the n - c f clients with the smallest s_m are good

    ``Delta`` is the mean of the clients that were good every time.

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S > 2 f. With 0 the rule is the mean.
        Default: what the simulation tells by the extra of this name.
      filter_fraction: ``c``, how many clients to leave out for each malicious one, >= 0; ``c f`` is rounded down.
      iterations: how many times, >= 1.
      num_coordinates: b, >= 1; all coordinates where there are no more.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``key``. Metrics: ``score`` (the largest ``sqrt(s_m)`` of
      the iterations), ``selected`` (1 or 0), ``weight`` (1 / k on the k selected), ``cosine`` to the update. ``apply``
      raises ValueError for too small a cohort. The choice has no gradient; through each selected delta it is 1 / k. Of
      clients that tie, the first. If nobody was good every time, nothing moves.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      none for any message: f attackers that lie out in different directions hide each other; c f / S for one direction

    Cost:
      3 passes over the deltas; for each iteration a Gram product of S x b and an eigenvalue problem of size S x S

    References:
      Shejwalkar and Houmansadr, Manipulating the Byzantine: optimizing model poisoning attacks and defenses for
      federated learning, NDSS 2021 (DnC). Interpretations: c = 1 and b = 10,000 are the defaults of Blades too, which
      takes one iteration or, in later versions, five. The b coordinates are one from each of b equal parts of the
      parameters, each parameter array giving in proportion to its size, so that no permutation of all coordinates is
      drawn. The singular vector is found from the distances between the clients.
    """

    filter_fraction: Scalar = 1.0
    iterations: int = 1
    num_coordinates: int = 10000
    reports = ("score", "selected")

    def check(self) -> None:
        super().check()
        checks.in_range("filter_fraction", self.filter_fraction, 0.0)
        checks.count("iterations", self.iterations, 1)
        checks.count("num_coordinates", self.num_coordinates, 1)

    def combine(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, key: jax.Array, **extras: Any
    ) -> Moved:
        del state
        f = self.assumed(extras, len(valid))
        left_out = jnp.floor(self.filter_fraction * f * (1 + 1e-6)).astype(jnp.int32)
        wanted = jnp.maximum(valid.sum() - left_out, 1)

        def once(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            sample = draw_coordinates(key, jax.lax.stop_gradient(deltas), self.num_coordinates)
            apart = distances({"sample": sample})
            score = jnp.abs(principal(apart, valid.astype(apart.dtype)).along)
            rank = jnp.argsort(jnp.argsort(jnp.where(valid, score, jnp.inf)))
            return rank < wanted, score

        good, score = jax.lax.map(once, jax.random.split(key, self.iterations))
        return moved_by_mean(params, deltas, valid & good.all(0), score=score.max(0))


def draw_coordinates(key: chex.PRNGKey, deltas: Deltas, number: int) -> Float[Array, "clients coordinates"]:
    """The clients' values in ``number`` coordinates, or all if there are no more; one from each of as many parts."""
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(deltas)]
    ends = np.cumsum([leaf.shape[1] for leaf in leaves], dtype=np.int64)
    quotas = np.diff(ends * min(number, int(ends[-1])) // ends[-1], prepend=0)

    def drawn(key: jax.Array, leaf: jax.Array, quota: int) -> jax.Array:
        if quota == leaf.shape[1]:
            return leaf
        edges = np.arange(quota + 1, dtype=np.int64) * leaf.shape[1] // quota
        low, high = edges[:-1].astype(np.int32), edges[1:].astype(np.int32)
        return leaf[:, jax.random.randint(key, (quota,), low, high, jnp.int32)]

    keys = jax.random.split(key, len(leaves))
    chosen = [drawn(*one) for one in zip(keys, leaves, map(int, quotas), strict=True) if one[2]]
    return jnp.concatenate([tree.accurate(columns) for columns in chosen], axis=1)
