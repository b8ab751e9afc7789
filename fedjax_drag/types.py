"""The types that every part of the package exchanges.

Shapes: ``S`` clients take part in a round, ``M`` belong to the federation, and ``[S, *p]`` is a
parameter pytree whose leaves have one more leading axis of length ``S``.

Sign convention: a **delta** is what a client's local pass added to its start point,
``delta = w_end - start``, so that a server moves *along* deltas.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax

from fedjax_drag.naming import name_of

Params = Any
"""A pytree of floating point arrays."""

Deltas = Any
"""Like :data:`Params`, every leaf with a leading axis ``[S]``."""

State = Any
"""State of a rule or algorithm: a pytree with a field ``metrics``, a dict of arrays."""


PER_CLIENT_EXTRAS = ("client_ids", "num_examples", "dissimilarity", "malicious", "valid")
"""Extras of a rule that have an entry for each client of the cohort, ``[S]``."""


STATIC_EXTRAS = ("num_byzantine", "reject_nonfinite")
"""Extras of a rule that are Python values, since they decide what is compiled; no other is."""


POISON_NEEDS = ("attacker_index",)
"""Names in the ``needs`` of an attack that are keywords of its ``poison``; all others are of its ``forge``."""


DISSIMILARITIES = {"dissimilarity": "flattened", "class_histogram_dissimilarity": "class_histogram"}
"""Names in ``needs`` that ask for the extra ``dissimilarity``, and the distance that each stands for."""


class Batch(NamedTuple):
    """A mini-batch, or a whole set of examples.

    Attributes:
      x: inputs ``[B, *input_shape]``.
      y: integer labels ``[B]``.
      real: ``[B]`` bool, False for padding; None if all examples are real.
    """

    x: jax.Array
    y: jax.Array
    real: jax.Array | None = None


@runtime_checkable
class InitFn(Protocol):
    """``init`` of a rule."""

    def __call__(self, params: Params, /) -> State:
        """The state before the first round.

        Args:
          params: the global parameters.

        Returns:
          The state. Its ``metrics`` have the keys that they have after ``apply``; entries of clients have length 0
          until the first cohort (:func:`fedjax_drag.tree.initial_state` gives them their final shapes).
        """
        ...


@runtime_checkable
class ApplyFn(Protocol):
    """``apply`` of a rule."""

    # With *_ the protocol accepts rules that name extras of their own, which are keyword-only without a default.
    def __call__(self, params: Params, deltas: Deltas, state: State, /, *_: Any, **extras: Any) -> tuple[Params, State]:
        """One round.

        Args:
          params: the global parameters.
          deltas: of the cohort, ``[S, *p]``.
          state: from ``init`` or the round before.
          **extras: see :class:`Aggregator`.

        Returns:
          The parameters after the round, and the state.
        """
        ...


@runtime_checkable
class AccumulateFn(Protocol):
    """``accumulate`` of :class:`Sums`."""

    def __call__(self, params: Params, messages: Any, state: State, /, *_: Any, **extras: Any) -> tuple[Any, Any]:
        """What a chunk of ``B`` clients adds up to.

        Args:
          params: the global parameters.
          messages: of a rule, deltas ``[B, *p]``; of a method, an :class:`Uplink` with a leading axis ``[B]``.
          state: from ``init`` or the round before.
          **extras: as for ``apply``, those of clients ``[B]``; in a first pass also ``first_pass=True``.

        Returns:
          ``total``, a pytree that is summed over the chunks, and ``kept``, a pytree with a leading axis ``[B]`` that
          is concatenated over them.
        """
        ...


@runtime_checkable
class FinishFn(Protocol):
    """``finish`` of :class:`Sums`."""

    def __call__(
        self, params: Params, total: Any, state: State, kept: Any, /, *_: Any, **extras: Any
    ) -> tuple[Params, State]:
        """The round, from what the chunks added up to.

        Args:
          params: the global parameters.
          total: sum of all chunks' totals.
          state: from ``init`` or the round before.
          kept: of the cohort, leading axis ``[S]``.
          **extras: as for ``apply``.

        Returns:
          The parameters after the round, and the state. Metrics that cannot be computed from the sums have length 0,
          as before the first round.
        """
        ...


@runtime_checkable
class AbsorbFirstPassFn(Protocol):
    """``absorb_first_pass`` of :class:`Sums`."""

    def __call__(self, total: Any, state: State, kept: Any, /, *_: Any, **extras: Any) -> State:
        """The state that ``accumulate`` needs, from a first pass over the clients.

        Args:
          total: sum of all chunks' totals.
          state: from ``init`` or the round before.
          kept: of the cohort, leading axis ``[S]``.
          **extras: as for ``apply``.
        """
        ...


class Sums(NamedTuple):
    """A rule, or the server side of a method, as sums over clients whose messages come in chunks.

    A cohort comes in chunks of any size ``B >= 1``. The totals of the chunks are added up, and nothing of the size of
    the parameters is kept of a client. The results are those of ``apply`` or ``aggregate`` on the whole stack, up to
    the order of the additions.

    Attributes:
      accumulate: ``(params, messages, state, **extras) -> (total, kept)`` of a chunk; see :class:`AccumulateFn`.
      finish: ``(params, total, state, kept, **extras) -> (params, state)`` of the cohort; see :class:`FinishFn`.
      needs_first_pass: ``(state) -> bool``, scalar: whether the clients must be gone through once before the state is
        ready for ``accumulate``. In that first pass ``accumulate`` receives the extra ``first_pass=True``, and its sums
        go to ``absorb_first_pass``. None if the state is always ready.
      absorb_first_pass: ``(total, state, kept, **extras) -> state``; see :class:`AbsorbFirstPassFn`. None if
        ``needs_first_pass`` is.
      whole: the ``apply`` or ``aggregate`` that these are the sums of. Sums do not describe another function, such as
        that of a copy made with ``_replace(apply=...)``.
      of_mean: whether parameters and state depend on the messages through the plain mean over the clients that count
        alone: a single client that sends that mean has the same effect.
    """

    accumulate: AccumulateFn
    finish: FinishFn
    needs_first_pass: Callable[[State], jax.Array] | None = None
    absorb_first_pass: AbsorbFirstPassFn | None = None
    whole: ApplyFn | None = None
    of_mean: bool = False


class Guarantee(NamedTuple):
    """What a differentially private part does for the data of one client; the privacy spent is computed from it.

    Attributes:
      noise_multiplier: standard deviation of the noise in units of the clip.
      delta: at which epsilon is reported; None to report none.
      cohort_size: clients of a round that the noise is meant for; None for those of the run.
      population: from how many they are drawn; None for those of the run.
      local: whether each client adds the noise to its own message, instead of the server to the sum.
    """

    noise_multiplier: Any
    delta: float | None = None
    cohort_size: int | None = None
    population: int | None = None
    local: bool = False


class Aggregator(NamedTuple):
    """A server-side rule: how a round's deltas move the global parameters.

    A round of federated learning is: the server sends its parameters to a cohort of S clients, each of them trains on
    its own data, and the server moves its parameters by what came back. A rule is the last step, as a pair of pure
    functions. ``init`` makes a state from the parameters; ``apply`` takes parameters, the stacked deltas of the cohort
    and the state, and returns new parameters and a new state. A rule knows neither models nor data nor devices, and
    what it decided about each client is in ``state.metrics``.

    All else is built on that. :func:`~fedjax_drag.algorithms.from_aggregator` combines a rule with what the clients run
    into an :class:`Algorithm`; an :class:`Attack` changes the messages in between; a simulation scans over rounds in
    one compiled program. Rules that wrap others (:func:`~fedjax_drag.aggregators.nnm`,
    :func:`~fedjax_drag.aggregators.bucketing`) are rules. Because the functions are pure and numbers such as a step
    size may be traced, one ``vmap`` runs a whole sweep of them.

    Attributes:
      init: ``(params) -> state``; see :class:`InitFn`.
      apply: ``(params, deltas, state, **extras) -> (params, state)``, pure and jittable; see :class:`ApplyFn`. Extras
        are keyword-only: ``client_ids`` ``[S]``, ``round`` (scalar, from 0), ``key``, ``root_delta`` (like ``params``),
        ``num_examples`` ``[S]``, ``dissimilarity`` ``[S]``, ``valid`` ``[S]``, and what only a simulation knows,
        ``malicious`` ``[S]`` and ``num_byzantine``, how many malicious clients a cohort has on the average, rounded up
        (a Python integer). A rule with a ``guarantee`` also receives ``expected_clients`` (scalar) where clients may be
        absent: how many answer on the average. A rule names the extras it uses and ignores the rest.
      needs: names of extras that a caller computes on request only. For ``dissimilarity`` it is one of
        :data:`DISSIMILARITIES`, which says which distance to compute.
      split: along which axis several devices may divide the deltas for ``apply``: ``"clients"`` if the rule takes
        norms, cosines and weighted sums of them only, so that they stay where they were computed; ``"coordinates"``
        if it compares the clients' values, as order statistics do, and needs whole columns.
      sums: the same rule for deltas that come in chunks; None if it needs the whole stack.
      guarantee: of differential privacy; None for none.
      num_clients: M, of the only federation that the state fits; None for any.
    """

    init: InitFn
    apply: ApplyFn
    needs: frozenset[str] = frozenset()
    split: Literal["clients", "coordinates"] = "coordinates"
    sums: Sums | None = None
    guarantee: Guarantee | None = None
    num_clients: int | None = None

    def __repr__(self) -> str:
        return f"Aggregator({self.name})"

    @property
    def name(self) -> str:
        """The name of the function that made it, such as ``drag``."""
        return name_of(self.apply)

    @property
    def streamed(self) -> Sums | None:
        """``sums`` if they are those of ``apply``."""
        return self.sums if self.sums is not None and self.sums.whole is self.apply else None


class Downlink(NamedTuple):
    """What the server sends before the local passes.

    A :class:`ClientRule` sees the downlink of one client: there ``own`` is the client's row, without the axis ``[S]``.

    Attributes:
      start: parameters from which every client starts, like ``params``.
      shared: pytree that is the same for all clients.
      own: pytree with a leading axis ``[S]``: one row for each client of the round.
    """

    start: Params
    shared: Any = ()
    own: Any = ()


class Uplink(NamedTuple):
    """What the clients of a round send back; both halves have a leading axis ``[S]``.

    Attributes:
      delta: ``w_end - start`` of each client, ``[S, *p]``.
      aux: further message of the method, a pytree; ``()`` where it has none.
    """

    delta: Deltas
    aux: Any = ()


@runtime_checkable
class GradFn(Protocol):
    """The gradient of the client's mean loss on a mini-batch."""

    def __call__(self, w: Params, batch: Batch, /) -> Params:
        """Computes the gradient.

        Args:
          w: the point at which it is taken, like ``params``.
          batch: the examples of the mean.

        Returns:
          The gradient, like ``params``.
        """
        ...


@runtime_checkable
class BeginFn(Protocol):
    """Starts the local pass of one client."""

    def __call__(self, downlink: Downlink, /) -> Any:
        """Makes the carry of the first local step.

        Args:
          downlink: what the server sent to this client.

        Returns:
          The carry: a pytree of arrays whose structure, shapes and dtypes every step keeps; ``()`` for none.
        """
        ...


@runtime_checkable
class DirectionFn(Protocol):
    """Computes one local step of one client."""

    def __call__(
        self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch, /
    ) -> tuple[Params, Any]:
        """Gives the direction against which the engine steps: ``w -= step_size * direction``.

        Args:
          grad_fn: gradient of the loss. It may be called several times, at any point; the call at ``w`` on ``batch``
            costs nothing beyond the training loss, which the engine needs anyway.
          w: the client's parameters before the step.
          carry: what the last step, or ``begin``, returned.
          downlink: what the server sent to this client.
          batch: the mini-batch of the step.

        Returns:
          The direction, like ``w``, and the carry of the next step.
        """
        ...


@runtime_checkable
class KeyedDirectionFn(Protocol):
    """:class:`DirectionFn` of a rule that draws random numbers."""

    def __call__(
        self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch, /, *, key: jax.Array
    ) -> tuple[Params, Any]:
        """The same, given a random ``key`` of the client, the round and the step."""
        ...


@runtime_checkable
class ReportFn(Protocol):
    """Ends the local pass of one client."""

    def __call__(self, downlink: Downlink, w_end: Params, carry: Any, total_step_size: jax.Array, /) -> Any:
        """Makes the message that goes with the delta.

        Args:
          downlink: what the server sent to this client.
          w_end: the client's parameters after the last step.
          carry: what the last step returned.
          total_step_size: sum of the step sizes taken (scalar), ``U eta`` for U steps of size eta.

        Returns:
          ``aux``, a pytree of arrays; ``()`` for none. The engine computes the delta ``w_end - start`` itself.
        """
        ...


@runtime_checkable
class SendFn(Protocol):
    """What becomes of a client's message before it leaves the client."""

    def __call__(self, key: jax.Array, uplink: Uplink, /) -> Uplink:
        """Changes a message.

        Args:
          key: random key of this client and round.
          uplink: the delta and what ``report`` has added, of one client.

        Returns:
          The message that is sent, in the same shapes and dtypes.
        """
        ...


class ClientRule(NamedTuple):
    """What one client computes; the functions see one client, without a leading axis.

    Attributes:
      begin: ``(downlink) -> carry`` at the start of a local pass; see :class:`BeginFn`.
      direction: ``(grad_fn, w, carry, downlink, batch) -> (direction, carry)`` in every local step; see
        :class:`DirectionFn`, or :class:`KeyedDirectionFn` where the rule is ``keyed``.
      report: ``(downlink, w_end, carry, total_step_size) -> aux``, the message beside the delta; see
        :class:`ReportFn`.
      keeps_carry: whether a client's next local pass goes on with the carry at the end of its last one. ``begin`` is
        then called once, before the first round, with ``Downlink(initial parameters)``; the server's own pass on its
        root data begins afresh every time. Default False: every pass begins afresh.
      send: ``(key, uplink) -> uplink``, what honest clients make of their message before it leaves them; see
        :class:`SendFn`. None to send it as it is. The server's own pass is not sent.
      keyed: whether ``direction`` draws random numbers and receives a ``key``.
      guarantee: of differential privacy for what is sent; None for none.
    """

    begin: BeginFn
    direction: DirectionFn | KeyedDirectionFn
    report: ReportFn
    keeps_carry: bool = False
    send: SendFn | None = None
    keyed: bool = False
    guarantee: Guarantee | None = None

    def __repr__(self) -> str:
        return f"ClientRule({self.name})"

    @property
    def name(self) -> str:
        """The name of the function that made it, such as ``fedprox``."""
        return name_of(self.direction)


@runtime_checkable
class BroadcastFn(Protocol):
    """Prepares what the server sends to the clients of a round."""

    def __call__(self, params: Params, state: State, client_ids: jax.Array, /) -> Downlink:
        """Makes the downlink of a round.

        Args:
          params: the global parameters.
          state: of the method. Its :class:`~fedjax_drag.per_client.PerClient` hold the rows of this cohort, in the
            order of ``client_ids``.
          client_ids: the clients of the round, int32 ``[S]``.

        Returns:
          The downlink, ``own`` with a leading axis ``[S]`` in the order of ``client_ids``.
        """
        ...


@runtime_checkable
class AggregateFn(Protocol):
    """Ends a round: moves the global parameters by what the clients sent."""

    def __call__(self, params: Params, uplink: Uplink, state: State, /, **extras: Any) -> tuple[Params, State]:
        """Computes the parameters and the state after a round; pure and jittable.

        Args:
          params: the global parameters before the round.
          uplink: the messages of the S clients.
          state: of the method before the round.
          **extras: as for :class:`Aggregator`. A method names those that it uses as keyword-only parameters without a
            default, so that a missing one is a TypeError, and ends with ``**extras``.

        Returns:
          The parameters and the state after the round. ``state.metrics`` keeps the keys that it has from ``init`` on.
        """
        ...


@runtime_checkable
class EligibleFn(Protocol):
    """Names the clients that may take part."""

    def __call__(self, state: State, /) -> jax.Array:
        """Computes the mask of the clients that may be drawn for the next round, bool ``[M]``."""
        ...


@runtime_checkable
class OutputFn(Protocol):
    """Computes the model that a method hands out where this is not the global model."""

    def __call__(self, params: Params, state: State, /) -> Params:
        """Computes the model from the parameters and the state after a round, like ``params``."""
        ...


class Algorithm(NamedTuple):
    """A federated method with a client and a server side.

    Attributes:
      client: the :class:`ClientRule` of the local pass.
      init: ``(params) -> state``. ``state.metrics`` is as for :class:`Aggregator`.
      broadcast: ``(params, state, client_ids) -> Downlink`` for the clients of the round; see :class:`BroadcastFn`.
      aggregate: ``(params, uplink, state, **extras) -> (params, state)``; see :class:`AggregateFn`.
      needs: names of extras that the engine must compute.
      split: as for :class:`Aggregator`, of the uplink for ``aggregate``.
      eligible: ``(state) -> [M]`` bool, who may be drawn for the next round; None for all clients. If fewer are
        eligible than a cohort has places, others fill it up with ``valid`` False.
      output: ``(params, state) -> params``, the model that the method hands out where it is not ``params``; the
        engine evaluates both.
      sums: ``aggregate`` for uplinks that come in chunks; None if it needs the whole cohort at once. In
        ``accumulate``, the per-client rows of the state are those of the chunk.
      guarantee: of differential privacy; None for none.
      num_clients: M, of the only federation that the state fits; None for any.
    """

    client: ClientRule
    init: Callable[[Params], State]
    broadcast: BroadcastFn
    aggregate: AggregateFn
    needs: frozenset[str] = frozenset()
    split: Literal["clients", "coordinates"] = "coordinates"
    eligible: EligibleFn | None = None
    output: OutputFn | None = None
    sums: Sums | None = None
    guarantee: Guarantee | None = None
    num_clients: int | None = None

    def __repr__(self) -> str:
        client = "" if self.client.name.startswith("_") else f", client={self.client.name}"
        return f"Algorithm({self.name}{client})"

    @property
    def name(self) -> str:
        """The name of the function that made it, or of its aggregation rule, such as ``scaffold``."""
        # The server side may come from a helper, init does not; from_aggregator gives the server side the rule's name.
        made_by_helper = "<locals>" in getattr(self.aggregate, "__qualname__", "")
        return name_of(self.init if made_by_helper else self.aggregate)

    @property
    def streamed(self) -> Sums | None:
        """``sums`` if they are those of ``aggregate``."""
        return self.sums if self.sums is not None and self.sums.whole is self.aggregate else None


@runtime_checkable
class PoisonFn(Protocol):
    """Changes the examples that a malicious client trains on."""

    def __call__(
        self, key: jax.Array, batch: Batch, /, *, positions: jax.Array, num_examples: jax.Array, num_classes: int
    ) -> Batch:
        """Poisons a mini-batch of a malicious client; it is called for no other.

        Args:
          key: random key of this client, the same in every round and step.
          batch: the client's own examples.
          positions: places of the batch's examples in the client's list, int ``[B]``. The list is in random order, so
            that a prefix of it is a random subset.
          num_examples: length of that list, scalar.
          num_classes: C; labels are 0 .. C - 1.

        What :attr:`Attack.needs` names of :data:`POISON_NEEDS` are further keywords.

        Returns:
          The batch to train on, in the same shapes and dtypes.
        """
        ...


@runtime_checkable
class ForgeFn(Protocol):
    """Changes the messages of the malicious clients."""

    def __call__(
        self, key: jax.Array, uplink: Uplink, malicious: jax.Array, /, *, client_ids: jax.Array, **knowledge: Any
    ) -> Uplink:
        """Forges the messages of a round.

        Args:
          key: random key of the round.
          uplink: what all S clients would honestly send.
          malicious: the clients that attack, bool ``[S]``.
          client_ids: int32 ``[S]``.
          **knowledge: ``round`` (scalar, from 0), what :attr:`Attack.needs` names, and where clients may be absent
            ``valid``, bool ``[S]``: whose messages reach the server. Those of the others are not sent.

        Returns:
          The messages that reach the server; those of benign clients keep their bits.
        """
        ...


@runtime_checkable
class ActiveFn(Protocol):
    """Says in which rounds an attack takes place."""

    def __call__(self, round_index: jax.Array, /) -> jax.Array:
        """Whether malicious clients attack in a round (bool scalar), counted from 0."""
        ...


@runtime_checkable
class GoalFn(Protocol):
    """Defines the success of a targeted attack."""

    def __call__(self, x: jax.Array, y: jax.Array, num_classes: int, /) -> tuple[jax.Array, jax.Array]:
        """Makes the examples on which the success of the attack is measured.

        Args:
          x: test inputs ``[B, *input_shape]``.
          y: their true labels, int ``[B]``.
          num_classes: C.

        Returns:
          The inputs to evaluate the model on, and the labels ``[B]`` that the attacker wants for them. An example whose
          wanted label is the true one is not counted.
        """
        ...


class Attack(NamedTuple):
    """What malicious clients do; a function that is None leaves that side honest.

    Attributes:
      poison: ``(key, batch, *, positions, num_examples, num_classes) -> batch``: what a malicious client trains on;
        see :class:`PoisonFn`.
      forge: ``(key, uplink, malicious, *, client_ids, **knowledge) -> uplink``: what malicious clients send; see
        :class:`ForgeFn`.
      needs: names of the keywords that ``forge`` must receive. ``"last_update"``: the last round's change of the global
        parameters, like ``params``. ``"root_delta"``: the delta of the server's own pass on its root data, like
        ``params``; only with a method that has one. ``"aggregate"``: ``(uplink) -> update``, the change of the global
        parameters that the server would make of such messages in this round, except for its own random draws. A name in
        :data:`POISON_NEEDS` is a keyword of ``poison`` instead: ``"attacker_index"``, the client's number among the
        malicious clients (of the federation, or of the cohort where each has its own), int scalar from 0.
      goal: ``(x, y, num_classes) -> (x, wanted)``: what the attacker wants the model to predict; see :class:`GoalFn`.
        None if any wrong prediction is a success.
      active: ``(round) -> bool``, the rounds in which malicious clients attack; in the others they are honest. None for
        all rounds. See :class:`ActiveFn` and :func:`~fedjax_drag.attacks.during`.
    """

    poison: PoisonFn | None = None
    forge: ForgeFn | None = None
    needs: frozenset[str] = frozenset()
    goal: GoalFn | None = None
    active: ActiveFn | None = None

    def __repr__(self) -> str:
        return f"Attack({self.name})"

    def attackers(self, malicious: jax.Array, round_index: jax.Array) -> jax.Array:
        """Which of the malicious clients attack in a round, like ``malicious``, which is bool of any shape."""
        return malicious if self.active is None else malicious & self.active(round_index)

    @property
    def name(self) -> str:
        """The name of the function that made it, such as ``alie``."""
        return name_of(self.forge or self.poison)
