"""SMEA: the mean of the n - f clients that vary least in the direction in which they vary most."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag.kernels.distances import distances
from fedjax_drag.ops.principal import largest_deviation
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, moved_by_mean
from fedjax_drag.ops.subsets import least, left_out
from fedjax_drag.types import Deltas, Params, State

MOST_SUBSETS = 20_000
"""How many subsets of a cohort the rule tries at most: each costs an eigenvalue problem."""


class smea(ByzantineAggregator):
    """Smallest maximum eigenvalue averaging: moves by the mean of the n - f deltas of the smallest covariance.

    Over all subsets T of n - f of the n valid clients, with the mean ``mu_T`` of their deltas::

        T* = argmin_T lambda_max( (1 / |T|) sum_{m in T} (g_m - mu_T) (g_m - mu_T)' )
        Delta = mu_T*

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S > 2 f, and at most 20,000 subsets
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
      3 passes over the deltas, a Gram product (S^2 d operations), the eigenvalues of an S x S matrix for each subset

    References:
      Allouah et al., On the privacy-robustness-utility trilemma in distributed learning, 2023. Interpretations:
      eigenvalues are exact, from the distances between the clients, where ByzFL takes a step of the power method from a
      random vector. n counts the valid clients; where rejections leave f or fewer, nothing moves.
    """

    reports = ("selected",)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        f = self.assumed(extras, len(valid))
        table = left_out("smea", len(valid), f, MOST_SUBSETS)
        apart = distances(jax.lax.stop_gradient(deltas))

        def deviation(kept: jax.Array) -> tuple[jax.Array, jax.Array]:
            return largest_deviation(apart, kept.astype(apart.dtype)), jnp.zeros((), apart.dtype)

        return moved_by_mean(params, deltas, least(deviation, table, valid))
