"""Meamed: in every coordinate the mean of the values around the median."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag import tree
from fedjax_drag.kernels.arithmetic import sum_rows
from fedjax_drag.kernels.order_statistics import middle, to_keys
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, moved_along
from fedjax_drag.types import Deltas, Params, State


def mean_around_median(
    deltas: Deltas, selected: Bool[Array, " clients"], count: Int[Array, ""]
) -> tuple[Params, Float[Array, " clients"]]:
    """The mean of the ``count`` values nearest to the median in each coordinate, and each client's share of it ``[S]``.

    Median and distances are those of the selected clients, of whom there are at least ``count >= 1``. Values equally
    far from the median at the edge of the ``count`` have equal shares. The choice has no gradient; through each value
    that is averaged it is its coefficient.
    """
    coefficient = _around_median(jax.lax.stop_gradient(deltas), selected, count)
    terms = jax.tree.map(lambda c, g: c * tree.accurate(g), coefficient, deltas)
    counted = selected.astype(jnp.float32)
    update = tree.weighted_sum(counted, terms)
    size = sum(leaf[0].size for leaf in jax.tree.leaves(deltas))
    share = sum(map(sum_rows, jax.tree.leaves(coefficient))) / size
    return update, (counted * share).astype(counted.dtype)


class meamed(ByzantineAggregator):
    """Moves every coordinate by the mean of the n - f deltas in it that are nearest to their median.

    With the median ``mu`` of the n valid clients' values ``g_m`` in a coordinate::

        Delta = mean of the n - f values with the smallest |g_m - mu|

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S > 2 f. With 0 the rule is the mean.
        Default: what the simulation tells by the extra of this name.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``weight`` (the client's coefficient averaged over the
      coordinates; these sum to 1), ``cosine`` to the update. ``apply`` raises ValueError for too small a cohort. The
      choice has no gradient; through each value that is averaged it is its coefficient.

    Raises:
      ValueError: if ``num_byzantine`` is not a count.

    Breakdown point:
      f / S with S > 2 f

    Cost:
      twice the cost of :func:`median` and 9 passes; memory 2 S x d

    References:
      Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018, "mean around median". Interpretations: the median
      of an even number is the mean of the two middle values; values equally far from it at the edge of the n - f have
      equal shares, where the paper and ByzFL take any of them. n counts the valid clients; where rejections leave 2 f
      or fewer, the guarantee is lost.
    """

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        f = self.assumed(extras, len(valid))
        update, weight = mean_around_median(deltas, valid, jnp.maximum(valid.sum() - f, 1))
        return moved_along(params, deltas, update, weight)


def _around_median(deltas: Deltas, selected: Bool[Array, " clients"], count: Int[Array, ""]) -> Any:
    """Coefficients ``[S, *p]``, of selected clients, of the mean of the ``count`` values nearest to the median."""
    theta = selected.sum()
    # Distances of stored values from a stored median are the same bits wherever they are computed.
    deltas = tree.stored(deltas)
    median = tree.stored(middle(deltas, selected, (theta - 1) // 2).mean)
    apart = jax.tree.map(lambda g, m: jnp.abs(tree.accurate(g) - m), deltas, median)
    # The count-th smallest distance is what is left at one of the ends after cutting equally at both.
    trim = jnp.minimum(count - 1, theta - count)
    reach = jax.lax.cond(
        trim == count - 1,
        lambda: middle(apart, selected, trim).low,
        lambda: middle(apart, selected, trim).high,
    )
    keys = jax.tree.map(to_keys, apart)
    inside, edge = jax.tree.map(jnp.less, keys, reach), jax.tree.map(jnp.equal, keys, reach)

    def number(holds: Any) -> Params:
        return tree.weighted_sum(selected.astype(jnp.float32), holds)

    def shares(inside: jax.Array, edge: jax.Array, num_inside: jax.Array, num_edge: jax.Array) -> jax.Array:
        return (inside + edge * ((count - num_inside) * tree.inverse(num_edge))) / count

    return jax.tree.map(shares, inside, edge, number(inside), number(edge))
