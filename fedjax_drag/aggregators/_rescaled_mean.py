"""The mean's direction with the length of another rule's step."""

from typing import Any

import jax

from fedjax_drag import tree
from fedjax_drag.ops.rules import Moved, WrappingAggregator, wrapped
from fedjax_drag.types import Deltas, Params, State


class rescaled_mean(WrappingAggregator):
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

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        moved, inner = self.aggregator.apply(params, deltas, state.inner, valid=valid, **extras)
        length = tree.norm(tree.subtract(jax.tree.map(tree.accurate, moved), params))
        mean = tree.mean(deltas, valid)
        factor = length * tree.inverse(tree.norm(mean))
        metrics = {"weight": factor * tree.uniform_weights(valid), "cosine": tree.cosines(deltas, mean)}
        after = wrapped(inner, metrics)
        return tree.move(params, tree.scale(factor, mean)), after
