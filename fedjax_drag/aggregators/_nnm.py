"""Nearest neighbour mixing: averages every delta with its neighbours before another rule."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import tree
from fedjax_drag.kernels.distances import distances
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, WrappingAggregator, wrapped
from fedjax_drag.types import Deltas, Params, State


class nnm(ByzantineAggregator, WrappingAggregator):
    """Replaces every delta by the mean of its n - f nearest, itself included, then applies another rule.

    Args:
      aggregator: the rule that gets the mixed deltas; client m's is the m-th as before.
      num_byzantine: f, how many of the cohort may be malicious, in [0, S - 1]; with 0 every delta becomes the mean.
        Default: what the simulation tells by the extra of this name.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what ``aggregator`` needs. Metrics: ``weight``
      (``W' w`` for the matrix W of the mixing and the wrapped rule's weights w), ``cosine`` of the client's own delta
      to the update, and the wrapped rule's scalars. ``apply`` raises ValueError for too small a cohort. The choice of
      neighbours has no gradient; through the means it is W'.

    Raises:
      ValueError: if ``num_byzantine`` is not a count.

    Breakdown point:
      that of the wrapped rule, f / S with S > 2 f at best

    Cost:
      that of the wrapped rule, 2 passes and two products (2 S^2 d operations); memory S x d

    References:
      Allouah et al., Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity, 2023, Algorithm 2.
      Interpretation: n counts the valid clients.
    """

    @property
    def split(self) -> str:
        return "coordinates"

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        f = self.assumed(extras, len(valid), len(valid) - 1, "S - 1")
        mixing = _mixing(distances(deltas), valid, f)
        mixed = tree.mix(mixing, deltas)
        moved, inner = self.aggregator.apply(params, mixed, state.inner, valid=valid, **extras)
        update = tree.subtract(jax.tree.map(tree.accurate, moved), params)
        metrics = {"weight": (inner.metrics["weight"][:, None] * mixing).sum(0), "cosine": tree.cosines(deltas, update)}
        return moved, wrapped(inner, metrics)


def _mixing(
    distance: Float[Array, "clients clients"], valid: Bool[Array, " clients"], num_byzantine: int
) -> Float[Array, "clients clients"]:
    """Row m is ``1 / (n - f)`` on the clients nearest to m, and 0 for an absent m; ``[S, S]``."""
    size = len(valid)
    distance = jnp.where(jnp.eye(size, dtype=bool), -1.0, distance)
    rank = jnp.argsort(jnp.argsort(jnp.where(valid, distance, jnp.inf), axis=1), axis=1)
    count = jnp.maximum(valid.sum() - num_byzantine, 1)
    return jnp.where((rank < count) & valid & valid[:, None], 1 / count.astype(jnp.float32), 0.0)
