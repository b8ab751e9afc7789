"""The coordinate-wise median of the deltas."""

from typing import NamedTuple

import jax

from fedjax_drag import tree
from fedjax_drag.aggregators._order import coordinate_blocks, row_at, sorted_rows
from fedjax_drag.aggregators._screen import empty_metrics, screened
from fedjax_drag.types import Aggregator


class MedianState(NamedTuple):
    """State of :func:`median`: the metrics of the last round."""

    metrics: dict[str, jax.Array]


def median() -> Aggregator:
    """Moves every coordinate by the median of the clients' deltas in it; breakdown point 1/2.

    Of an even number of clients, the mean of the two middle values.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``cosine`` to the median, ``weight``: the share of
      coordinates in which the client's value is (one of) the middle.

    References:
      Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, 2018,
      Algorithm 1, option I.
    """

    def init(params):
        del params
        return MedianState(empty_metrics())

    @screened
    def apply(params, deltas, state, *, valid, **_):
        del state
        number = valid.sum()
        blocks, restore = coordinate_blocks(deltas)
        middles = []
        for block in blocks:
            rows = sorted_rows(block, valid)
            middles.append((row_at(rows, (number - 1) // 2), row_at(rows, number // 2)))
        # Halve before adding, so that values near the largest float do not overflow.
        update = restore([low / 2 + high / 2 for low, high in middles])
        chosen = valid * sum(_times_chosen(block, *ends) for block, ends in zip(blocks, middles, strict=True))
        weight = chosen * tree.inverse(chosen.sum())
        metrics = {"weight": weight, "cosine": tree.cosines(deltas, update)}
        return tree.move(params, update), MedianState(metrics)

    return Aggregator(init, apply)


def _times_chosen(block: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """In how many coordinates of a block ``[S, d]`` each client's value is a middle one ``[S]``."""
    values = tree.accurate(block)
    return ((values == low) | (values == high)).sum(1)
