"""Methods with equations on both sides, and an aggregation rule in the place of the server's mean.

- :class:`TwoSided` is a method that states both sides: ``broadcast`` and ``aggregate`` of the server, ``begin``,
  ``direction`` and ``report`` of the clients.
- :class:`SummedMethod` takes sums of its own beside the rule, so that messages can come in chunks if the rule's can.
"""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from typing import Any, NamedTuple, cast

import jax

from fedjax_drag import checks, kinds, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.ops.screening import Screening, screen
from fedjax_drag.types import (
    Aggregator,
    Algorithm,
    ClientRule,
    Deltas,
    Params,
    State,
    Sums,
    Uplink,
)
from fedjax_drag.types._part import forwards, undefined


@forwards("rule", "needs", "split")
class TwoSided(Algorithm):
    """A method whose clients run its own ``direction``, and whose server moves by an aggregation rule.

    A subclass has a field ``aggregator``: the rule, or None for the mean, :func:`~fedjax_drag.aggregators.fedavg`. One
    that keeps something of each client has a field ``num_clients``, which a simulation fills in where it is None.
    """

    aggregator = cast("Any", None)  # no annotation: a class variable, or a field of a subclass
    num_clients = cast("Any", property(lambda self: self.rule.num_clients))

    def check(self) -> None:
        inner = self.aggregator
        if inner is not None:
            kinds.AGGREGATOR.check("aggregator", inner)
        number = self.num_clients
        if number is not None:
            checks.count("num_clients", number, 1)
        if inner is not None and None not in (inner.num_clients, number) and inner.num_clients != number:
            allowed = f"that of the method, {number}"
            raise checks.ArgumentError(
                f"aggregator={inner.name}", f"num_clients={inner.num_clients}: must be {allowed}"
            )

    @property
    def rule(self) -> Aggregator:
        """The aggregation rule."""
        return fedavg() if self.aggregator is None else self.aggregator

    @property
    def clients(self) -> int:
        """M, clients in the federation.

        Raises:
          ValueError: if it was not given, and no simulation has filled it in.
        """
        return checks.known("num_clients", self.num_clients, self.name)

    @property
    def client(self) -> ClientRule:
        return ClientSide(self)

    # The equations of a client, as of ClientRule, by whose defaults a subclass goes that does not state them.
    receive, begin, direction, report = ClientRule.receive, ClientRule.begin, ClientRule.direction, ClientRule.report
    own, trained, keep = ClientRule.own, ClientRule.trained, ClientRule.keep


@forwards("method", "receive", "begin", "direction", "report", "own", "trained", "keep")
class ClientSide(ClientRule):
    """The client side of a method."""

    method: TwoSided

    @property
    def name(self) -> str:
        return f"_{self.method.name}"


class Contribution(NamedTuple):
    """What a method takes from the clients of a chunk beside the aggregation rule.

    Attributes:
      total: sum over the clients.
      rows: one entry for each client, leading axis ``[B]``.
    """

    total: Any = ()
    rows: Any = ()


class Outcome(NamedTuple):
    """A round, after the messages of all clients were added up.

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


class _Totals(NamedTuple):
    """Sums over the clients: those of the aggregation rule, and the method's own."""

    inner: Any
    own: Any


class _Kept(NamedTuple):
    """What is kept of each client after its message was added to the sums, leading axis ``[B]``."""

    inner: Any
    rows: Any
    who: Screening


class SummedMethod(TwoSided):
    """A method whose server side is the aggregation rule and sums over the clients' messages.

    Clients whose message, ``aux`` included, is not usable do not count. The rule's state is the field ``aggregator`` of
    the method's.
    """

    def messages(self, params: Params, uplink: Uplink, state: State, **extras: Any) -> Deltas:
        """What the rule is given of each client, by default its delta."""
        del params, state, extras
        return uplink.delta

    def contribute(self, uplink: Uplink, state: State, counted: jax.Array, **extras: Any) -> Contribution:
        """What the method takes from clients ``[B]``, of which those that are not ``counted`` add nothing."""
        del uplink, state, counted, extras
        return Contribution()

    def close(self, params: Params, state: State, outcome: Outcome, **extras: Any) -> tuple[Params, State]:
        """The parameters and the state after a round."""
        raise undefined(self, "close")

    def origin(self, params: Params, state: State) -> Params:
        """Where the rule is applied, by default at the global parameters."""
        del state
        return params

    def aggregate(self, params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Params, State]:
        here, own = self.origin(params, state), self.messages(params, uplink, state, **extras)
        moved, inner, counted = apply_screened(self.rule, here, uplink, state.aggregator, own, **extras)
        total, rows = self.contribute(uplink, state, counted, **extras)
        return self.close(params, state, Outcome(moved, inner, total, rows, counted), **extras)

    @property
    def streamed(self) -> Sums | None:
        sums = self.rule.streamed
        if sums is None:
            return None
        first = sums.needs_first_pass and self._needs_first_pass, sums.prepare and self._prepare
        return Sums(self._accumulate, self._finish, *first)

    @property
    def _sums(self) -> Sums:
        sums = self.rule.streamed
        assert sums is not None
        return sums

    def _accumulate(
        self,
        params: Params,
        uplink: Uplink,
        state: State,
        *,
        valid: Any = None,
        reject_nonfinite: bool = True,
        **extras: Any,
    ) -> tuple[_Totals, _Kept]:
        who = screen(uplink, valid, reject_nonfinite, extras.get("start_loss"))
        of_rule = extras | {"valid": who.counted, "reject_nonfinite": reject_nonfinite}
        here, own = self.origin(params, state), self.messages(params, uplink, state, **extras)
        inner, kept = self._sums.accumulate(here, own, state.aggregator, **of_rule)
        total, rows = self.contribute(uplink, state, who.counted, **extras)
        return _Totals(inner, total), _Kept(kept, rows, who)

    def _finish(self, params: Params, total: _Totals, state: State, kept: _Kept, **extras: Any) -> tuple[Params, State]:
        here = self.origin(params, state)
        moved, inner = self._sums.finish(here, total.inner, state.aggregator, kept.inner, **extras)
        inner = with_metrics(inner, num_rejected=kept.who.num_rejected)
        return self.close(params, state, Outcome(moved, inner, total.own, kept.rows, kept.who.counted), **extras)

    def _needs_first_pass(self, state: State) -> jax.Array:
        needs = self._sums.needs_first_pass
        assert needs is not None
        return needs(state.aggregator)

    def _prepare(self, total: _Totals, state: State, kept: _Kept, **extras: Any) -> State:
        prepare = self._sums.prepare
        assert prepare is not None
        return state._replace(aggregator=prepare(total.inner, state.aggregator, kept.inner, **extras))


def apply_screened(
    rule: Aggregator,
    params: Params,
    uplink: Uplink,
    state: State,
    deltas: Deltas = None,
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
      deltas: what the rule is given of each client; default the deltas of ``uplink``.
      valid: clients that take part at all ``[S]``; default all.
      reject_nonfinite: whether to reject clients whose message is not usable.
      **extras: for the rule.

    Returns:
      The parameters, the rule's state with ``num_rejected`` among its metrics, and which clients count ``[S]``.
    """
    who = screen(uplink, valid, reject_nonfinite, extras.get("start_loss"))
    extras |= {"valid": who.counted, "reject_nonfinite": reject_nonfinite}
    moved, after = rule.apply(params, uplink.delta if deltas is None else deltas, state, **extras)
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
