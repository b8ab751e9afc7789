"""The types that every part of the package exchanges.

Shapes: ``S`` clients take part in a round, ``M`` belong to the federation, and ``[S, *p]`` is a
parameter pytree whose leaves have one more leading axis of length ``S``.

Sign convention: a **delta** is what a client's local pass added to its start point,
``delta = w_end - start``, so that a server moves *along* deltas.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

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
      real: ``[B]`` bool, which of the examples count, the others being padding; None if all do.
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

    Attributes:
      start: parameters every client starts from.
      shared: pytree that is the same for all clients.
      own: pytree with a leading axis ``[S]``: one row for each client of the round.
    """

    start: Params
    shared: Any = ()
    own: Any = ()


class Uplink(NamedTuple):
    """What the clients of a round send back; both have a leading axis ``[S]``.

    Attributes:
      delta: ``w_end - start`` of each client.
      aux: further message of the method, ``()`` where it has none.
    """

    delta: Deltas
    aux: Any = ()


class ClientRule(NamedTuple):
    """What one client computes; the functions see one client, without a leading axis.

    Attributes:
      begin: ``(downlink) -> carry`` at the start of a local pass.
      direction: ``(grad_fn, w, carry, downlink, batch) -> (direction, carry)``. The engine steps
        ``w -= step_size * direction``. ``grad_fn(w, batch)`` may be called more than once.
      report: ``(downlink, w_end, carry, total_step_size) -> aux``, the message beside the delta.
        ``total_step_size`` is the sum of the step sizes taken.
    """

    begin: Callable[[Downlink], Any]
    direction: Callable[..., tuple[Params, Any]]
    report: Callable[..., Any]


class Algorithm(NamedTuple):
    """A federated method with a client and a server side.

    Attributes:
      client: the :class:`ClientRule` of the local pass.
      init: ``(params) -> state``.
      broadcast: ``(params, state, client_ids) -> Downlink`` for the clients of the round.
      aggregate: ``(params, uplink, state, **extras) -> (params, state)``; extras as for
        :class:`Aggregator`.
      needs: names of extras that the engine must compute.
      split: as for :class:`Aggregator`, of the uplink for ``aggregate``.
      eligible: ``(state) -> [M]`` bool, who may be drawn for the next round; default everybody. If they are
        fewer than a cohort, others fill it up with ``valid`` False.
      output: ``(params, state) -> params``, the model that the method hands out where it is not ``params``;
        evaluated beside it.
      sums: ``aggregate`` for uplinks that come in chunks; None if it must see all of them together. In
        ``accumulate``, the per-client rows of the state are those of the chunk.
    """

    client: ClientRule
    init: Callable[[Params], State]
    broadcast: Callable[..., Downlink]
    aggregate: Callable[..., tuple[Params, State]]
    needs: frozenset[str] = frozenset()
    split: Literal["clients", "coordinates"] = "coordinates"
    eligible: Callable[[State], jax.Array] | None = None
    output: Callable[[Params, State], Params] | None = None
    sums: Sums | None = None

    @property
    def streamed(self) -> Sums | None:
        """``sums`` if they are those of ``aggregate``."""
        return self.sums if self.sums is not None and self.sums.whole is self.aggregate else None


class Attack(NamedTuple):
    """What malicious clients do; a hook that is None leaves that side honest.

    Attributes:
      poison: ``(key, batch, *, positions, num_examples, num_classes) -> batch``: what a malicious client trains
        on. ``positions`` ``[B]`` are the batch's places in the client's own list of ``num_examples`` examples,
        which is in random order, so that a prefix is a random subset. Called for malicious clients only.
      forge: ``(key, uplink, malicious, *, client_ids, **knowledge) -> uplink``: what malicious clients send. It
        sees the whole round, ``malicious`` is ``[S]`` bool, and returns benign rows bit for bit. ``knowledge`` is
        ``round`` and what ``needs`` asks for.
      needs: what the attacker must be told, by keyword. ``"last_update"``: the last round's change of the global
        parameters. ``"root_delta"``: what the server's own pass on its root data gave, like ``params``; only with
        a method that has one. ``"aggregate"``: ``(uplink) -> update``, the change of the global parameters that
        the server would make of such messages in this round, but for a random draw of its own.
      goal: ``(x, y, num_classes) -> (x, wanted)``: what the attacker wants the model to say. Of test inputs
        ``[B, *input_shape]`` and labels ``[B]`` it makes those to ask with, and the labels ``[B]`` that would be its
        success; where ``wanted`` is the true label, an example does not count. None if any error will do.
    """

    poison: Callable[..., Batch] | None = None
    forge: Callable[..., Uplink] | None = None
    needs: frozenset[str] = frozenset()
    goal: Callable[..., tuple[jax.Array, jax.Array]] | None = None
