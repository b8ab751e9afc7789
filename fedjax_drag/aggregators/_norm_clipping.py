"""The mean of deltas that are clipped to a common length."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.sums import average, cosine_to_sum, summing
from fedjax_drag.types import Aggregator, Sums


class NormClippingState(NamedTuple):
    """State of :func:`norm_clipping`: the metrics of the last round."""

    metrics: dict[str, jax.Array]


def clip_scale(distance: jax.Array, radius: Any) -> jax.Array:
    """``min(1, radius / distance)`` ``[S]``; 1 at distance 0."""
    return jnp.where(distance > radius, radius * tree.inverse(distance), 1.0)


def norm_clipping(max_norm: Any) -> Aggregator:
    """Averages the deltas after shortening the long ones: ``theta += mean min(1, C / ||g_m||) g_m``.

    Args:
      max_norm: ``C``, the greatest length of a delta, > 0.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that can sum as deltas come. Metrics: ``scale``
      (``min(1, C / ||g_m||)``), ``weight`` ``scale / S``; from the whole stack also ``cosine`` to the update.

    Raises:
      ValueError: if ``max_norm`` is not positive.

    Breakdown point:
      bounded whoever is malicious: f clients shift the step by at most 2 f / S x max_norm

    Cost:
      3 passes over the deltas

    References:
      Sun et al., Can you really backdoor federated learning?, 2019. The norm thresholding alone, without the noise
      that the authors also add.
    """
    checks.positive("max_norm", max_norm)

    def init(params):
        del params
        return NormClippingState(empty_metrics("scale"))

    def accumulate(params, deltas, state, *, valid, **_):
        del params, state
        scale = jnp.where(valid, clip_scale(tree.norms(deltas), max_norm), 0.0)
        return tree.weighted_sum(scale, deltas), scale

    def finish(params, total, state, scale, *, valid, **_):
        del state
        metrics = {"weight": tree.uniform_weights(valid) * scale, "scale": scale}
        return tree.move(params, average(total, valid)), NormClippingState(metrics)

    return summing(init, Sums(accumulate, finish), hindsight={"cosine": cosine_to_sum})
