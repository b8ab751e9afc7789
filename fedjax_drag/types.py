"""The types that every part of the package exchanges.

Shapes: ``S`` clients take part in a round, ``M`` belong to the federation, and ``[S, *p]`` is a
parameter pytree whose leaves have one more leading axis of length ``S``.

Sign convention: a **delta** is what a client's local pass added to its start point,
``delta = w_end - start``, so that a server moves *along* deltas.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax

Params = Any
"""A pytree of floating point arrays."""

Deltas = Any
"""Like :data:`Params`, every leaf with a leading axis ``[S]``."""

State = Any
"""State of a rule or algorithm: a pytree with a field ``metrics``, a dict of arrays."""


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


class Sums(NamedTuple):
    """A rule or a server side as sums over the clients, which need not be there all at once.

    The cohort comes in chunks of any size ``B >= 1``. What a chunk adds up to is added to what the others did, and
    nothing of the size of the parameters is kept of a client. The results are those of ``apply`` or ``aggregate``
    on the whole stack, up to the order of the additions.

    Attributes:
      accumulate: ``(params, messages, state, **extras) -> (total, seen)`` for the clients of a chunk: ``messages`` are
        their deltas, or uplinks, with a leading axis ``[B]``; extras as for :class:`Aggregator`, those of clients
        ``[B]``. ``total`` is a pytree to be summed over chunks, ``seen`` one with a leading axis ``[B]``.
      finish: ``(params, total, state, seen, **extras) -> (params, state)``, given the sum of all totals and ``seen`` of
        the cohort, ``[S]``. Metrics that it cannot know have length 0, as before the first round.
      needs_first_pass: ``(state) -> bool``, scalar: whether the clients must be gone through once before the state is
        ready for ``accumulate``. In that first pass ``accumulate`` receives the extra ``first_pass=True``, and its sums
        go to ``absorb_first_pass``. None if the state is always ready.
      absorb_first_pass: ``(total, state, seen, **extras) -> state``, ready for ``accumulate``; None if
        ``needs_first_pass`` is.
      whole: the ``apply`` or ``aggregate`` that these are the sums of. They do not speak for another, such as that of
        a copy made with ``_replace(apply=...)``.
    """

    accumulate: Callable[..., tuple[Any, Any]]
    finish: Callable[..., tuple[Params, State]]
    needs_first_pass: Callable[[State], jax.Array] | None = None
    absorb_first_pass: Callable[..., State] | None = None
    whole: Callable[..., tuple[Params, State]] | None = None


class Aggregator(NamedTuple):
    """A server-side rule: how a round's deltas move the global parameters.

    Attributes:
      init: ``(params) -> state``. ``state.metrics`` has the same keys as after ``apply``; its
        per-client entries have length 0 until a cohort was seen
        (:func:`fedjax_drag.tree.initial_state` gives them their final shapes).
      apply: ``(params, deltas, state, **extras) -> (params, state)``, pure and jittable. Extras are
        keyword-only: ``client_ids`` ``[S]``, ``round`` (scalar, from 0), ``key``, ``root_delta``
        (like ``params``), ``num_examples`` ``[S]``, ``dissimilarity`` ``[S]``, ``valid`` ``[S]``, and what only a
        simulation knows, ``malicious`` ``[S]``. A rule names the extras it uses and swallows the rest.
      needs: names of extras that the caller must go out of its way to compute. A name may say which one, as in
        ``"dissimilarity:class_histogram"``; the extra is still called ``dissimilarity``.
      split: along which axis several devices may divide the deltas for ``apply``: ``"clients"`` if it sees them
        only through norms, cosines and weighted sums, so that they may stay where they were computed;
        ``"coordinates"`` if it compares the clients' values, as order statistics do, and wants whole columns.
      sums: the same rule for deltas that come in chunks; None if it must see all of them together.
    """

    init: Callable[..., State]
    apply: Callable[..., tuple[Params, State]]
    needs: frozenset[str] = frozenset()
    split: Literal["clients", "coordinates"] = "coordinates"
    sums: Sums | None = None

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


class ClientRule(NamedTuple):
    """What one client computes; the functions see one client, without a leading axis.

    Attributes:
      begin: ``(downlink) -> carry`` at the start of a local pass; see :class:`BeginFn`.
      direction: ``(grad_fn, w, carry, downlink, batch) -> (direction, carry)`` in every local step; see
        :class:`DirectionFn`.
      report: ``(downlink, w_end, carry, total_step_size) -> aux``, the message beside the delta; see
        :class:`ReportFn`.
    """

    begin: BeginFn
    direction: DirectionFn
    report: ReportFn


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
          **knowledge: ``round`` (scalar, from 0), and what :attr:`Attack.needs` names.

        Returns:
          The messages that reach the server; those of benign clients keep their bits.
        """
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
        parameters that the server would make of such messages in this round, except for its own random draws.
      goal: ``(x, y, num_classes) -> (x, wanted)``: what the attacker wants the model to predict; see :class:`GoalFn`.
        None if any wrong prediction is a success.
    """

    poison: PoisonFn | None = None
    forge: ForgeFn | None = None
    needs: frozenset[str] = frozenset()
    goal: GoalFn | None = None
