"""The coordinate-wise median of the deltas."""

from typing import Any

import jax

from fedjax_drag.kernels.order_statistics import kept_share, middle
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_along
from fedjax_drag.types import Deltas, Params, State


class median(PlainAggregator):
    """Moves every coordinate by the median of the clients' deltas in it.

    Of an even number of clients, the mean of the two middle values. The gradient falls on the middle clients of each
    coordinate, in equal shares where several tie.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``cosine`` to the median, ``weight``: the share of
      coordinates in which the client's value is (one of) the middle; these sum to 1.

    Breakdown point:
      1/2

    Cost:
      9 passes over the deltas up to 32 clients; beyond, a copy and 32 rounds of counting in cache besides

    References:
      Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, 2018,
      Algorithm 1, option I.
    """

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        del state
        # All but the middle one, or the middle two, are cut off.
        kept = middle(deltas, valid, (valid.sum() - 1) // 2)
        return moved_along(params, deltas, kept.mean, kept_share(deltas, valid, kept))
