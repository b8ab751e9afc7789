"""FLTrust: weights from the agreement with the server's own update."""

from typing import Any

import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.ops.weighted import Clients, Step, WeightedAggregator, Weights
from fedjax_drag.types import Params, State


class fltrust(WeightedAggregator):
    """Weights norm-matched deltas by their trust score, the clipped cosine to the reference.

    With ``r`` the delta of a local pass over root data (extra ``root_delta``)::

        TS_m = max(0, cos(g_m, r))
        theta += sum_m TS_m (||r|| / ||g_m||) g_m / sum_m TS_m

    Args:
      projection: instead average the projections ``TS_m ||g_m|| r / ||r||`` over the S clients, which is
        how the BR-DRAG paper describes the rule.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``root_delta`` and also takes deltas in chunks. Metrics:
      ``trust`` (``TS_m``), ``cosine`` to ``r``, ``weight`` (the coefficient of ``g_m``; with ``projection`` the
      client's share in the sum of scores). If no client is trusted, parameters stay as they were.

    Breakdown point:
      1: the update is never longer than the root delta (with projection 0).

    Cost:
      3 passes over the deltas, and a local pass over root data.

    References:
      Cao et al., FLTrust: Byzantine-robust federated learning via trust bootstrapping, 2021; projection:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section VI.
    """

    projection: bool = False

    reports = ("trust",)
    has_reference = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"root_delta"})

    @property
    def length(self) -> str:
        return "client" if self.projection else "reference"

    def reference(self, state: State, *, root_delta: Params, **_: Any) -> Params:
        del state
        return root_delta

    def weigh(self, clients: Clients, state: State, **_: Any) -> Weights:
        del state
        trust = jnp.where(clients.valid, jnp.maximum(clients.cosine, 0.0), 0.0)  # TS_m
        if self.projection:
            return Weights(along=trust, metrics={"trust": trust})
        return Weights(own=trust, mass=trust, metrics={"trust": trust})

    def after(self, step: Step, state: State, **_: Any) -> tuple[Step, State]:
        if not self.projection:
            return step, state
        trust = step.metrics["trust"]
        return step._replace(metrics=step.metrics | {"weight": tree.inverse(trust.sum()) * trust}), state
