"""The mean's direction with the length of another rule's step."""

from typing import Any, NamedTuple

import jax

from fedjax_drag import kinds, tree
from fedjax_drag.aggregators._nnm import passed_on
from fedjax_drag.ops.screening import empty_metrics, screened
from fedjax_drag.types import Aggregator, Deltas, Params, State


class RescaledMeanState(NamedTuple):
    """State of :func:`rescaled_mean`.

    Attributes:
      inner: state of the other rule, without its metrics.
      metrics: of the last round.
    """

    inner: Any
    metrics: dict[str, jax.Array]


def rescaled_mean(aggregator: Aggregator) -> Aggregator:
    """Moves along the mean of the deltas, as far as another rule would move: ``theta += ||u|| mean g / ||mean g||``.

    Separates the effect of the length of a rule's update ``u`` from that of its direction. The other rule receives
    every round's deltas and carries its state on as if its own update had been applied.

    Args:
      aggregator: the rule whose length is taken.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what ``aggregator`` needs. Metrics: ``weight``
      (``||u|| / (S ||mean g||)``), ``cosine`` to the mean, and the other rule's scalars. Where the mean is zero it
      stands still.

    Breakdown point:
      that of the other rule for the length; one client turns the direction anywhere

    Cost:
      that of the other rule, and 6 passes

    References:
      none; a control experiment for rules such as :func:`drag`
    """
    kinds.AGGREGATOR.check("aggregator", aggregator)

    def init(params: Params) -> RescaledMeanState:
        inner = aggregator.init(params)
        return RescaledMeanState(inner._replace(metrics={}), empty_metrics(**passed_on(inner)))

    @screened
    def apply(
        params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any
    ) -> tuple[Params, RescaledMeanState]:
        moved, inner = aggregator.apply(params, deltas, state.inner, valid=valid, **extras)
        length = tree.norm(tree.subtract(jax.tree.map(tree.accurate, moved), params))
        mean = tree.mean(deltas, valid)
        factor = length * tree.inverse(tree.norm(mean))
        metrics = {"weight": factor * tree.uniform_weights(valid), "cosine": tree.cosines(deltas, mean)}
        after = RescaledMeanState(inner._replace(metrics={}), metrics | passed_on(inner))
        return tree.move(params, tree.scale(factor, mean)), after

    return Aggregator(init, apply, aggregator.needs, aggregator.split, num_clients=aggregator.num_clients)
