"""MDA: the mean of the n - f clients that lie closest together."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.kernels.distances import distances
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, moved_by_mean
from fedjax_drag.ops.subsets import least, left_out
from fedjax_drag.types import Deltas, Params, State

MOST_SUBSETS = 200_000
"""How many subsets of a cohort the rule tries at most."""


class mda(ByzantineAggregator):
    """Minimum diameter averaging: moves by the mean of the n - f deltas whose largest distance is smallest.

    Over all subsets T of n - f of the n valid clients::

        T* = argmin_T max_{i, j in T} ||g_i - g_j||
        Delta = mean of g_m, m in T*

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S > 2 f, and at most 200,000 subsets
        ``S! / (f! (S - f)!)``. With 0 the rule is the mean. Default: what the simulation tells by the extra of this
        name.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``selected`` (1 or 0), ``weight`` (1 / (n - f) on the
      selected), ``cosine`` to the update. ``apply`` raises ValueError for too small a cohort or too many subsets. The
      choice has no gradient; through each selected delta it is 1 / (n - f).

    Raises:
      ValueError: if ``num_byzantine`` is not a count.

    Breakdown point:
      f / S with S > 2 f

    Cost:
      3 passes over the deltas, a Gram product (S^2 d operations), S^2 for each subset

    References:
      El Mhamdi et al., Genuinely distributed Byzantine machine learning, 2020, after Rousseeuw, Multivariate estimation
      with high breakdown point, 1985. Interpretations: several subsets often have the same diameter, since a farthest
      pair may be in all of them; of these, where the paper takes any and ByzFL the first, the one with the smallest sum
      of squared distances counts, so that the order of the clients does not matter. n counts the valid clients; where
      rejections leave f or fewer, nothing moves.
    """

    reports = ("selected",)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        f = self.assumed(extras, len(valid))
        table = left_out("mda", len(valid), f, MOST_SUBSETS)
        apart = distances(jax.lax.stop_gradient(deltas))

        def diameter(kept: jax.Array) -> tuple[jax.Array, jax.Array]:
            among = jnp.where(kept[:, None] & kept, apart, 0.0)
            farthest = among.max()
            return farthest, jnp.square(among * tree.inverse(farthest)).sum()

        return moved_by_mean(params, deltas, least(diameter, table, valid))
