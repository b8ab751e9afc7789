"""Training on the server's own root data alone."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.sums import summing
from fedjax_drag.types import Aggregator, Sums


class RootOnlyState(NamedTuple):
    """State of :func:`root_only`: the metrics of the last round."""

    metrics: dict[str, jax.Array]


def root_only() -> Aggregator:
    """Moves by the delta of a local pass over root data and ignores the clients: ``theta += r``.

    The honest baseline of every rule that owns clean root data: whoever does not beat it gains nothing from the
    clients.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``root_delta`` and can look at deltas as they come. Metrics:
      ``weight`` (0), ``cosine`` to ``r``. Like every rule it stands still in a round from which no client is left.

    Breakdown point:
      1: no client has a say; it is as good as the root data

    Cost:
      2 passes over the deltas, for their cosines

    References:
      Cao et al., FLTrust: Byzantine-robust federated learning via trust bootstrapping, 2021. The server's update
      of that rule, alone.
    """

    def init(params):
        del params
        return RootOnlyState(empty_metrics())

    def accumulate(params, deltas, state, *, root_delta, **_):
        del params, state
        return (), tree.cosines(deltas, root_delta)

    def finish(params, total, state, cosine, *, root_delta, **_):
        del total, state
        metrics = {"weight": jnp.zeros(cosine.shape), "cosine": cosine}
        return tree.move(params, root_delta), RootOnlyState(metrics)

    return summing(init, Sums(accumulate, finish), frozenset({"root_delta"}))
