"""Training on the server's own root data alone."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.ops.rules import SummedAggregator
from fedjax_drag.ops.screening import MetricsOnly
from fedjax_drag.types import Deltas, Params, State


class root_only(SummedAggregator):
    """Moves by the delta of a local pass over root data and ignores the clients: ``theta += r``.

    The baseline of every rule that has clean root data: a rule that does not beat it gains nothing from the
    clients.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``root_delta`` and also takes deltas in chunks. Metrics:
      ``weight`` (0), ``cosine`` to ``r``. As with every rule, a round in which no client counts changes nothing.

    Breakdown point:
      1: no client has a say; it is as good as the root data

    Cost:
      2 passes over the deltas, for their cosines

    References:
      Cao et al., FLTrust: Byzantine-robust federated learning via trust bootstrapping, 2021. The server's update
      of that rule, alone.
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"root_delta"})

    def accumulate(
        self, params: Params, deltas: Deltas, state: State, *, root_delta: Params, **_: Any
    ) -> tuple[tuple[()], jax.Array]:
        del params, state
        return (), tree.cosines(deltas, root_delta)

    def finish(
        self, params: Params, total: tuple[()], state: State, kept: jax.Array, *, root_delta: Params, **_: Any
    ) -> tuple[Params, MetricsOnly]:
        del total, state
        metrics = {"weight": jnp.zeros(kept.shape), "cosine": kept}
        return tree.move(params, root_delta), MetricsOnly(metrics)
