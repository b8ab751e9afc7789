"""The aggregation rule inside a method with a client part."""

from typing import Any

import jax

from fedjax_drag.aggregators._screen import screen
from fedjax_drag.types import Aggregator, Params, State, Uplink


def apply_screened(
    rule: Aggregator,
    params: Params,
    uplink: Uplink,
    state: State,
    *,
    valid: Any = None,
    reject_nonfinite: bool = True,
    **extras: Any,
) -> tuple[Params, State, jax.Array]:
    """What the rule makes of the deltas of the clients whose whole message, ``aux`` included, is finite.

    Args:
      rule: the method's aggregation rule.
      params: global parameters.
      uplink: the round's messages.
      state: of the rule.
      valid: clients that take part at all ``[S]``; default everybody.
      reject_nonfinite: whether to reject clients whose message is not finite.
      **extras: for the rule.

    Returns:
      The parameters, the rule's state with ``num_rejected`` among its metrics, and which clients count ``[S]``.
    """
    counted, num_rejected = screen(uplink, valid, reject_nonfinite)
    extras |= {"valid": counted, "reject_nonfinite": reject_nonfinite}
    moved, after = rule.apply(params, uplink.delta, state, **extras)
    return moved, with_metrics(after, num_rejected=num_rejected), counted


def with_metrics(inner: State, **metrics: jax.Array) -> State:
    """The state of the aggregation rule, its metrics extended by those of the method around it."""
    return inner._replace(metrics={**inner.metrics, **metrics})
