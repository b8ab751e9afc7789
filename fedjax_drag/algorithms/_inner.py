"""The aggregation rule inside a method with a client part."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_drag.ops.screening import Screening, screen
from fedjax_drag.types import Aggregator, Params, State, Sums, Uplink


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
    """What the rule makes of the deltas of the clients whose whole message, ``aux`` included, is usable.

    That is, finite and of a norm that leaves room for sums; see :func:`fedjax_drag.tree.usable_rows`.

    Args:
      rule: the method's aggregation rule.
      params: global parameters.
      uplink: the round's messages.
      state: of the rule.
      valid: clients that take part at all ``[S]``; default everybody.
      reject_nonfinite: whether to reject clients whose message is not usable.
      **extras: for the rule.

    Returns:
      The parameters, the rule's state with ``num_rejected`` among its metrics, and which clients count ``[S]``.
    """
    who = screen(uplink, valid, reject_nonfinite)
    extras |= {"valid": who.counted, "reject_nonfinite": reject_nonfinite}
    moved, after = rule.apply(params, uplink.delta, state, **extras)
    return moved, with_metrics(after, num_rejected=who.num_rejected), who.counted


def with_metrics(inner: State, **metrics: jax.Array) -> State:
    """The state of the aggregation rule, its metrics extended by those of the method around it."""
    return inner._replace(metrics={**inner.metrics, **metrics})


class Outcome(NamedTuple):
    """A round in a method with a server side of its own, when the messages of its clients have been added up.

    Attributes:
      moved: where the aggregation rule leads.
      inner: state of that rule, its metrics included.
      total: sum of the method's own over the clients.
      rows: what the method makes of each client, leading axis ``[S]``.
      counted: ``[S]`` bool, the clients that count.
    """

    moved: Params
    inner: State
    total: Any
    rows: Any
    counted: jax.Array


class _Kept(NamedTuple):
    """What stays of each client when its message has been added to the sums."""

    inner: Any
    rows: Any
    who: Screening


def server_side(
    rule: Aggregator,
    own: Callable[..., tuple[Any, Any]],
    close: Callable[..., tuple[Params, State]],
    start: Callable[[Params, Any], Params] = lambda params, state: params,
) -> tuple[Callable[..., tuple[Params, State]], Sums | None]:
    """The server side of a method that has an aggregation rule inside and takes sums of its own beside it.

    Clients whose message, ``aux`` included, is not usable do not count.

    Args:
      rule: the method's aggregation rule; its state is the field ``aggregator`` of the method's.
      own: ``(uplink, state, counted, **extras) -> (total, rows)`` of clients ``[B]``: what the method sums over them,
        and what it makes of each, leading axis ``[B]``.
      close: ``(params, state, outcome, **extras) -> (params, state)``.
      start: ``(params, state) -> params``, where the deltas start.

    Returns:
      ``aggregate`` of an :class:`~fedjax_drag.types.Algorithm`, and its ``sums`` if the rule has some.
    """

    def aggregate(params, uplink, state, **extras):
        moved, inner, counted = apply_screened(rule, start(params, state), uplink, state.aggregator, **extras)
        total, rows = own(uplink, state, counted, **extras)
        return close(params, state, Outcome(moved, inner, total, rows, counted), **extras)

    sums = rule.streamed
    if sums is None:
        return aggregate, None

    def accumulate(params, uplink, state, *, valid=None, reject_nonfinite=True, **extras):
        who = screen(uplink, valid, reject_nonfinite)
        told = extras | {"valid": who.counted, "reject_nonfinite": reject_nonfinite}
        of_rule, kept = sums.accumulate(start(params, state), uplink.delta, state.aggregator, **told)
        total, rows = own(uplink, state, who.counted, **extras)
        return (of_rule, total), _Kept(kept, rows, who)

    def finish(params, totals, state, kept, **extras):
        of_rule, total = totals
        moved, inner = sums.finish(start(params, state), of_rule, state.aggregator, kept.inner, **extras)
        inner = with_metrics(inner, num_rejected=kept.who.num_rejected)
        return close(params, state, Outcome(moved, inner, total, kept.rows, kept.who.counted), **extras)

    def needs_first_pass(state):
        assert sums.needs_first_pass is not None
        return sums.needs_first_pass(state.aggregator)

    def absorb_first_pass(totals, state, kept, **extras):
        assert sums.absorb_first_pass is not None
        return state._replace(aggregator=sums.absorb_first_pass(totals[0], state.aggregator, kept.inner, **extras))

    return aggregate, Sums(
        accumulate,
        finish,
        sums.needs_first_pass and needs_first_pass,
        sums.absorb_first_pass and absorb_first_pass,
        aggregate,
    )
