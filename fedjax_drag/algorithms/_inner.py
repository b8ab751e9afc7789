"""The aggregation rule inside a method with a client part."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from fedjax_drag import kinds, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.ops.screening import Screening, screen
from fedjax_drag.types import AggregateFn, Aggregator, Deltas, Params, State, Sums, Uplink


def rule_or_mean(
    aggregator: Aggregator | None, weighting: str = "uniform", num_clients: int | None = None
) -> Aggregator:
    """The aggregation rule that a method was given, or FedAvg's mean.

    Raises:
      ValueError: if it is an object of another kind, or of another federation than the ``num_clients`` of the method.
    """
    if aggregator is None:
        return fedavg(weighting)
    kinds.AGGREGATOR.check("aggregator", aggregator)
    if None not in (aggregator.num_clients, num_clients) and aggregator.num_clients != num_clients:
        allowed = f"that of the method, {num_clients}"
        raise ValueError(f"aggregator={aggregator.name}: num_clients={aggregator.num_clients}: must be {allowed}")
    return aggregator


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
    """Applies the rule to the deltas of the clients whose whole message, ``aux`` included, is usable.

    That is, finite and of a norm that leaves room for sums; see :func:`fedjax_drag.tree.usable_rows`.

    Args:
      rule: the method's aggregation rule.
      params: global parameters.
      uplink: the round's messages.
      state: of the rule.
      valid: clients that take part at all ``[S]``; default all.
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


def apart(inner: State, **metrics: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    """The state of the aggregation rule without its metrics, and these extended by those of the method around it."""
    return inner._replace(metrics={}), {**inner.metrics, **metrics}


def scaled(factor: jax.Array, deltas: Deltas) -> Deltas:
    """Each client's delta times its factor ``[S]``."""
    return jax.tree.map(lambda d: (tree.expand(factor, d) * d).astype(d.dtype), deltas)


def step_between(params: Params, moved: Params, server_step_size: Any) -> Params:
    """``params`` plus ``server_step_size`` times the step that the rule takes from there to ``moved``."""
    return jax.tree.map(lambda p, q: (p + server_step_size * (q - p)).astype(p.dtype), params, moved)


class Contribution(NamedTuple):
    """What a method takes from the clients of a chunk beside the aggregation rule.

    Attributes:
      total: sum over the clients.
      rows: one entry for each client, leading axis ``[B]``.
    """

    total: Any = ()
    rows: Any = ()


class Outcome(NamedTuple):
    """A round in a method with a server side of its own, after the messages of all clients were added up.

    Attributes:
      moved: the parameters to which the aggregation rule moves.
      inner: state of that rule, its metrics included.
      total: of the :class:`Contribution`, summed over the round's clients.
      rows: of the :class:`Contribution`, leading axis ``[S]``.
      counted: ``[S]`` bool, the clients that count.
    """

    moved: Params
    inner: State
    total: Any
    rows: Any
    counted: jax.Array


@runtime_checkable
class ContributeFn(Protocol):
    """Computes what a method takes from its clients beside the aggregation rule."""

    def __call__(self, uplink: Uplink, state: State, counted: jax.Array, /, **extras: Any) -> Contribution:
        """Computes it for the clients ``[B]`` of a chunk, of which those that are not ``counted`` add nothing."""
        ...


@runtime_checkable
class CloseFn(Protocol):
    """Ends a round of a method with a server side of its own."""

    def __call__(self, params: Params, state: State, outcome: Outcome, /, **extras: Any) -> tuple[Params, State]:
        """Computes the parameters and the state after the round."""
        ...


@runtime_checkable
class StartFn(Protocol):
    """Computes the point at which local passes start."""

    def __call__(self, params: Params, state: State, /) -> Params:
        """Computes the point from the global parameters and the state of the method."""
        ...


def _at_params(params: Params, state: State) -> Params:
    del state
    return params


def server_side(
    rule: Aggregator, contribute: ContributeFn, close: CloseFn, start: StartFn = _at_params
) -> tuple[AggregateFn, Sums | None]:
    """The server side of a method that has an aggregation rule inside and takes sums of its own beside it.

    Clients whose message, ``aux`` included, is not usable do not count.

    Args:
      rule: the method's aggregation rule; its state is the field ``aggregator`` of the method's.
      contribute: ``(uplink, state, counted, **extras) -> Contribution`` of clients ``[B]``.
      close: ``(params, state, outcome, **extras) -> (params, state)``.
      start: ``(params, state) -> params``, where the deltas start.

    Returns:
      ``aggregate`` of an :class:`~fedjax_drag.types.Algorithm`, and its ``sums`` if the rule has some.
    """

    def aggregate(params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Params, State]:
        moved, inner, counted = apply_screened(rule, start(params, state), uplink, state.aggregator, **extras)
        total, rows = contribute(uplink, state, counted, **extras)
        return close(params, state, Outcome(moved, inner, total, rows, counted), **extras)

    sums = rule.streamed
    return aggregate, None if sums is None else _in_chunks(sums, contribute, close, start)._replace(whole=aggregate)


class _Totals(NamedTuple):
    """Sums over the clients: those of the aggregation rule, and the method's own."""

    inner: Any
    own: Any


class _Kept(NamedTuple):
    """What is kept of each client after its message was added to the sums, leading axis ``[B]``."""

    inner: Any
    rows: Any
    who: Screening


def _in_chunks(sums: Sums, contribute: ContributeFn, close: CloseFn, start: StartFn) -> Sums:
    """The server side around the sums of its rule, for uplinks that come in chunks."""

    def accumulate(
        params: Params,
        uplink: Uplink,
        state: State,
        *,
        valid: Any = None,
        reject_nonfinite: bool = True,
        **extras: Any,
    ) -> tuple[_Totals, _Kept]:
        who = screen(uplink, valid, reject_nonfinite)
        of_rule = extras | {"valid": who.counted, "reject_nonfinite": reject_nonfinite}
        inner, kept = sums.accumulate(start(params, state), uplink.delta, state.aggregator, **of_rule)
        total, rows = contribute(uplink, state, who.counted, **extras)
        return _Totals(inner, total), _Kept(kept, rows, who)

    def finish(params: Params, total: _Totals, state: State, kept: _Kept, **extras: Any) -> tuple[Params, State]:
        moved, inner = sums.finish(start(params, state), total.inner, state.aggregator, kept.inner, **extras)
        inner = with_metrics(inner, num_rejected=kept.who.num_rejected)
        return close(params, state, Outcome(moved, inner, total.own, kept.rows, kept.who.counted), **extras)

    def needs_first_pass(state: State) -> jax.Array:
        assert sums.needs_first_pass is not None
        return sums.needs_first_pass(state.aggregator)

    def absorb_first_pass(total: _Totals, state: State, kept: _Kept, **extras: Any) -> State:
        assert sums.absorb_first_pass is not None
        return state._replace(aggregator=sums.absorb_first_pass(total.inner, state.aggregator, kept.inner, **extras))

    return Sums(
        accumulate,
        finish,
        sums.needs_first_pass and needs_first_pass,
        sums.absorb_first_pass and absorb_first_pass,
    )
