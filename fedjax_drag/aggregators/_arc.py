"""Adaptive robust clipping: shortens the longest deltas to the next shorter one before another rule."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag.aggregators._clipping import Clipped
from fedjax_drag.ops.rules import ByzantineAggregator


class arc(ByzantineAggregator, Clipped):
    """Clips the k longest deltas to the length of the (k + 1)-th longest, then applies another rule.

    With n valid clients, and their lengths in order, ``l_(1) >= ... >= l_(n)``::

        k = floor(2 f (n - f) / n)
        g_m <- min(1, l_(k+1) / ||g_m||) g_m

    Args:
      aggregator: the rule that gets the clipped deltas; client m's is the m-th as before.
      num_byzantine: f, how many of the cohort may be malicious, in [0, S - 1]; with 0 nothing is clipped. Default: what
        the simulation tells by the extra of this name.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what ``aggregator`` needs. Metrics: ``scale``
      (``min(1, l_(k+1) / ||g_m||)``), ``weight`` (the wrapped rule's times ``scale``), ``cosine`` of the client's own
      delta to the update, and the wrapped rule's scalars. ``apply`` raises ValueError for too small a cohort. The
      gradient is the wrapped rule's, through the clipped deltas and the length to which they are clipped.

    Raises:
      ValueError: if ``num_byzantine`` is not a count.

    Breakdown point:
      that of the wrapped rule, f / S with S > 2 f at best; around the mean, bounded by the honest lengths

    Cost:
      that of the wrapped rule, and 4 passes; memory S x d

    References:
      Allouah et al., Adaptive gradient clipping for robust federated learning, 2025, Algorithm 2. Interpretations: n
      counts the valid clients, and where rejections leave f or fewer nothing is clipped; k is exact, where ByzFL's
      product of rounded numbers may be one less.
    """

    def threshold(self, norm: Float[Array, " clients"], valid: Bool[Array, " clients"], **extras: Any) -> Any:
        f = self.assumed(extras, size := len(valid), size - 1, "S - 1")
        number = jnp.maximum(valid.sum(), 1)
        clipped = 2 * f * jnp.maximum(number - f, 0) // number
        return jnp.sort(jnp.where(valid, norm, jnp.inf))[number - 1 - clipped]
