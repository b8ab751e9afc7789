"""Bulyan: repeated Krum, then a mean around the median of every coordinate."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import tree
from fedjax_drag.aggregators._krum import distances_to_others
from fedjax_drag.aggregators._meamed import mean_around_median
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, moved_along
from fedjax_drag.types import Deltas, Params, State


class bulyan(ByzantineAggregator):
    """Chooses clients by repeated Krum, then averages in every coordinate their values nearest to the median.

    With n valid clients::

        repeat theta = n - 2 f times: move the client of lowest Krum score among those left to the chosen
        in every coordinate: mean of the beta = theta - 2 f chosen values nearest to the median of the chosen

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S >= 4 f + 3. With 0 the rule is the mean.
        Default: what the simulation tells by the extra of this name.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``selected`` (1 or 0), ``weight`` (the client's coefficient
      averaged over the coordinates), ``cosine`` to the update. ``apply`` raises ValueError for too small a
      cohort. The choices have no gradient; through each value that is averaged it is its coefficient.

    Raises:
      ValueError: if ``num_byzantine`` is not a count.

    Breakdown point:
      f / S with S >= 4 f + 3

    Cost:
      a Gram product (S^2 d operations), twice the cost of :func:`median` and 12 passes; memory 2 S x d

    References:
      El Mhamdi et al., The hidden vulnerability of distributed learning in Byzantium, 2018, Section 4. Readings:
      scores are computed anew among the r clients left, over their r - f - 2 nearest others, at least
      over one, as in the last rounds where that leaves none. The two nearest to each other then tie, and the one
      nearer to the rest goes first. Values equally far from the median at the edge of the beta have equal shares.
      Where rejections leave less than 4 f + 3 clients, theta and beta are at least 1, and the guarantee is lost.
    """

    reports = ("selected",)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        f = self.assumed(extras, size := len(valid), (size - 3) // 4, reason="bulyan needs S >= 4 f + 3")
        selected = _repeated_krum(distances_to_others(deltas, valid), valid, f)
        update, weight = mean_around_median(deltas, selected, jnp.maximum(selected.sum() - 2 * f, 1))
        return moved_along(params, deltas, update, weight, selected=selected.astype(weight.dtype))


def _repeated_krum(
    apart: Float[Array, "clients clients"], valid: Bool[Array, " clients"], num_byzantine: int
) -> Bool[Array, " clients"]:
    """Which clients are chosen ``[S]``, from the distances to others.

    Of each client's neighbours, ranked once, those left whose rank is below the client's own limit count. The next
    score is a sum over one fewer: without the one just chosen, or else without the farthest. So nothing is sorted
    again, nothing subtracted, which would lose digits, and a step stores two numbers for each client.
    """
    apart = jax.lax.stop_gradient(apart)
    rank = jnp.argsort(jnp.argsort(apart, axis=1), axis=1)
    present = jnp.where(jnp.isfinite(apart), apart, 0.0)
    number = valid.sum()
    wanted = jnp.maximum(number - 2 * num_byzantine, 1)

    def choose(step: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        left, limit = now
        near = left & (rank < limit[:, None])
        nearest = jnp.where(left, apart, jnp.inf).min(1)
        tied = nearest <= jnp.where(left, nearest, jnp.inf).min()
        over_one = number - step - num_byzantine - 2 <= 1
        score = tree.norms(jnp.where(jnp.where(over_one, left, near), present, 0.0))
        chosen = jnp.argmin(jnp.where(left & (tied | ~over_one), score, jnp.inf))
        farthest = jnp.where(near, rank, -1).max(1)
        fewer = jnp.where(rank[:, chosen] < limit, limit, farthest)
        return tree.where(step < wanted, (left & (jnp.arange(len(valid)) != chosen), fewer), now)

    limit = jnp.full(len(valid), number - num_byzantine - 2)
    left, _ = jax.lax.fori_loop(0, len(valid) - 2 * num_byzantine, choose, (valid, limit))
    return valid & ~left
