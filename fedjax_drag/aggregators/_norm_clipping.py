"""The mean of deltas that are clipped to a common length."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import checks, tree
from fedjax_drag.ops.screening import stateless
from fedjax_drag.ops.weighted import Clients, Weights, weighted_rule
from fedjax_drag.types import Aggregator, State


def clip_scale(distance: Float[Array, " clients"], radius: Any) -> Float[Array, " clients"]:
    """``min(1, radius / distance)`` ``[S]``; 1 at distance 0."""
    return jnp.where(distance > radius, radius * tree.inverse(distance), 1.0)


def norm_clipping(max_norm: Any) -> Aggregator:
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
    checks.positive("max_norm", max_norm)

    def weigh(clients: Clients, state: State, **_: Any) -> Weights:
        del state
        scale = jnp.where(clients.valid, clip_scale(clients.norm, max_norm), 0.0)  # min(1, C / ||g_m||)
        return Weights(own=scale, metrics={"scale": scale})

    return weighted_rule(weigh, stateless("scale"))
