"""The mean of deltas that are clipped to a common length."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import checks, tree
from fedjax_drag.ops.weighted import Clients, WeightedAggregator, Weights
from fedjax_drag.types import Scalar, State


def clip_scale(distance: Float[Array, "*clients"], radius: Any) -> Float[Array, "*clients"]:
    """``min(1, radius / distance)``; 1 at distance 0."""
    return jnp.where(distance > radius, radius * tree.inverse(distance), 1.0)


class norm_clipping(WeightedAggregator):
    """Averages the deltas after shortening the long ones: ``theta += mean min(1, C / ||g_m||) g_m``.

    Args:
      max_norm: ``C``, the greatest length of a delta, > 0.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks. Metrics: ``scale``
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

    max_norm: Scalar

    reports = ("scale",)

    def check(self) -> None:
        checks.positive("max_norm", self.max_norm)

    def weigh(self, clients: Clients, state: State, **_: Any) -> Weights:
        del state
        scale = jnp.where(clients.valid, clip_scale(clients.norm, self.max_norm), 0.0)  # min(1, C / ||g_m||)
        return Weights(own=scale, metrics={"scale": scale})
