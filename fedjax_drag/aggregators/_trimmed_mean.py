"""The coordinate-wise trimmed mean of the deltas."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.kernels.order_statistics import kept_share, middle
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_along
from fedjax_drag.types import Deltas, Params, Scalar, State


class trimmed_mean(PlainAggregator):
    """Moves every coordinate by the mean of the deltas in it without the smallest and the largest.

    With ``beta = trim_fraction`` and the n valid clients' values in order, ``g_(0) <= ... <= g_(n-1)``::

        k = floor(beta n)
        Delta = (g_(k) + ... + g_(n-1-k)) / (n - 2k),   theta += Delta

    The gradient falls on the clients kept in each coordinate; those that tie at an end have equal shares of it. Its
    derivative by ``trim_fraction`` is 0.

    Args:
      trim_fraction: beta, the share of clients cut off at EACH end, in [0, 0.5); 0 is :func:`fedavg`. A fraction, as
        in Flower; ByzFL takes a count. As 0.29 * 100 is 28.999..., a product that is less than one part in a million
        below a whole number is taken for it.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``cosine`` to the trimmed mean, ``weight``: the client's share
      of the values kept, over all coordinates; these sum to 1.

    Raises:
      ValueError: if ``trim_fraction`` is out of range.

    Breakdown point:
      trim_fraction

    Cost:
      9 passes over the deltas up to 32 clients; beyond, a copy and 64 rounds of counting in cache besides

    References:
      Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, 2018, Algorithm 1,
      option II. Interpretation: beta n, which need not be a whole number, is rounded down.
    """

    trim_fraction: Scalar = 0.2

    def check(self) -> None:
        checks.in_range("trim_fraction", self.trim_fraction, 0.0, 0.5, open_high=True)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        del state
        kept = middle(deltas, valid, _number_cut(self.trim_fraction, valid.sum()))
        return moved_along(params, deltas, kept.mean, kept_share(deltas, valid, kept))


def _number_cut(fraction: Any, number: jax.Array) -> jax.Array:
    """``floor(fraction * number)`` of the decimal that ``fraction`` stands for; leaves at least one client."""
    cut = jnp.floor(fraction * (1 + 1e-6) * number.astype(jnp.float32)).astype(number.dtype)
    return jnp.clip(cut, 0, jnp.maximum(number - 1, 0) // 2)
