"""Adaptive robust clipping: shortens the longest deltas to the next shorter one before another rule."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag.aggregators._clipping import clipped_rule
from fedjax_drag.naming import named
from fedjax_drag.ops.byzantine import byzantine_count, byzantine_needs, check_byzantine
from fedjax_drag.types import Aggregator


def arc(aggregator: Aggregator, num_byzantine: int | None = None) -> Aggregator:
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
      Allouah et al., Adaptive gradient clipping for robust federated learning, 2025, Algorithm 2. Readings: n counts
      the valid clients, and where rejections leave f or fewer nothing is clipped; k is exact, where ByzFL's product
      of rounded numbers may be one less.
    """
    check_byzantine(num_byzantine)

    def threshold(norm: jax.Array, valid: jax.Array, **extras: Any) -> jax.Array:
        f, size = byzantine_count("arc", num_byzantine, extras), len(valid)
        if f >= size:
            raise ValueError(f"num_byzantine={f}: must be at most S - 1 = {size - 1} for a cohort of {size}")
        number = jnp.maximum(valid.sum(), 1)
        clipped = 2 * f * jnp.maximum(number - f, 0) // number
        return jnp.sort(jnp.where(valid, norm, jnp.inf))[number - 1 - clipped]

    return named("arc", clipped_rule(aggregator, threshold, byzantine_needs(num_byzantine)))
