"""Training on the server's own root data alone."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.ops.screening import MetricsOnly, stateless
from fedjax_drag.ops.sums import summed_rule
from fedjax_drag.types import Aggregator, Deltas, Params, State, Sums


def root_only() -> Aggregator:
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

    def accumulate(
        params: Params, deltas: Deltas, state: State, *, root_delta: Params, **_: Any
    ) -> tuple[tuple[()], jax.Array]:
        del params, state
        return (), tree.cosines(deltas, root_delta)

    def finish(
        params: Params, total: tuple[()], state: State, cosine: jax.Array, *, root_delta: Params, **_: Any
    ) -> tuple[Params, MetricsOnly]:
        del total, state
        metrics = {"weight": jnp.zeros(cosine.shape), "cosine": cosine}
        return tree.move(params, root_delta), MetricsOnly(metrics)

    return summed_rule(stateless(), Sums(accumulate, finish), frozenset({"root_delta"}))
