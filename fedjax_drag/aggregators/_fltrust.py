"""FLTrust: weights from the agreement with the server's own update."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.sums import summing
from fedjax_drag.types import Aggregator, Sums


class FLTrustState(NamedTuple):
    """State of :func:`fltrust`: the metrics of the last round."""

    metrics: dict[str, jax.Array]


def fltrust(projection: bool = False) -> Aggregator:
    """Weights norm-matched deltas by their trust score, the clipped cosine to the reference.

    With ``r`` the delta of a local pass over root data (extra ``root_delta``)::

        TS_m = max(0, cos(g_m, r))
        theta += sum_m TS_m (||r|| / ||g_m||) g_m / sum_m TS_m

    Args:
      projection: instead average the projections ``TS_m ||g_m|| r / ||r||`` over the S clients, which is
        how the BR-DRAG paper describes the rule.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``root_delta`` and can sum as deltas come. Metrics: ``trust``
      (``TS_m``), ``cosine`` to ``r``, ``weight`` (the coefficient of ``g_m``; with ``projection`` the client's share in
      the sum of scores). If no client is trusted, parameters stay as they were.

    Breakdown point:
      1: the update is never longer than the root delta (with projection 0).

    Cost:
      3 passes over the deltas, and a local pass over root data.

    References:
      Cao et al., FLTrust: Byzantine-robust federated learning via trust bootstrapping, 2021; projection:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section VI.
    """

    def init(params):
        del params
        return FLTrustState(empty_metrics("trust"))

    def accumulate(params, deltas, state, *, valid, root_delta, **_):
        del params, state
        cosine, norms = tree.cosines(deltas, root_delta), tree.norms(deltas)
        trust = jnp.where(valid, jnp.maximum(cosine, 0.0), 0.0)
        unit_weight = trust * tree.inverse(norms)
        return () if projection else tree.weighted_sum(unit_weight, deltas), (cosine, norms, trust, unit_weight)

    def finish(params, total, state, seen, *, valid, root_delta, **_):
        del state
        cosine, norms, trust, unit_weight = seen
        unit, length = tree.inverse(trust.sum()), tree.norm(root_delta)
        if projection:
            distance = (tree.uniform_weights(valid) * trust * norms).sum()
            update = jax.tree.map(lambda r: distance * (tree.inverse(length) * tree.accurate(r)), root_delta)
            weight = unit * trust
        else:
            update = tree.scale(unit * length, total)
            weight = unit_weight * (unit * length)
        metrics = {"weight": weight, "cosine": cosine, "trust": trust}
        return tree.move(params, update), FLTrustState(metrics)

    return summing(init, Sums(accumulate, finish), frozenset({"root_delta"}))
