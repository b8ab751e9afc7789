"""The contract of an attack."""
# Fields of FunctionAttack stand in the place of methods.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax

from fedjax_drag.types._client_rule import Examined
from fedjax_drag.types._messages import Batch, Deltas, Params, Uplink
from fedjax_drag.types._part import Part, forwards, undefined

LossOfModel = Callable[[Params, Any, jax.Array], jax.Array]
"""``(params, x, y) -> mean loss`` of a model on examples."""

POISON_NEEDS = ("attacker_index", "local_step")
"""Names in the ``needs`` of an attack that are keywords of its ``poison``; all others are of its ``forge``."""


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

        What :attr:`Attack.needs` names of :data:`POISON_NEEDS` are further keywords, and ``memory`` if it is named;
        ``local_step`` is left out where the batch is of no local step, but of the client's loss.

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
          **knowledge: ``round`` (scalar, from 0), what :attr:`Attack.needs` names, and where clients may be absent, or
            the method excludes some, ``valid``, bool ``[S]``: whose messages reach the server. Those of the others are
            not sent.

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

        An attack whose :attr:`Attack.needs` name ``"memory"`` has it as a further keyword.

        Returns:
          The inputs to evaluate the model on, and the labels ``[B]`` that the attacker wants for them. An example whose
          wanted label is the true one is not counted.
        """
        ...


def _defines(method: str) -> Any:
    """Whether an attack has a method of its own, or a function in its place."""
    own = lambda self: getattr(self, method) is not None and getattr(type(self), method) is not getattr(Attack, method)
    return property(own)


class Attack(Part):
    """What malicious clients do.

    An attack is a subclass that overrides some of the methods; on the sides that it leaves alone, malicious clients are
    honest. ``Attack(forge=function)``, by keyword or in the order of :class:`FunctionAttack`, makes one of functions.
    Whether it has a ``poison``, ``loss``, ``gradient``, ``forge``, ``forge_for``, ``rehearse`` or ``goal`` is said by
    ``poisons``, ``has_loss``, ``has_gradient``, ``forges``, ``forges_for_each``, ``rehearses`` and ``is_targeted``.

    Attributes:
      needs: names of the keywords that ``forge`` must receive. ``"last_update"``: the last round's change of the global
        parameters, like ``params``. ``"root_delta"``: the delta of the server's own pass on its root data, like
        ``params``; only with a method that has one. ``"aggregate"``: ``(uplink) -> update``, the change of the global
        parameters that the server would make of such messages in this round, except for its own random draws.
        ``"memory"``: what :meth:`init`, :meth:`rehearse` and :meth:`observe` have made of the rounds so far; it is a
        keyword of ``poison`` and ``goal`` too. A name in :data:`POISON_NEEDS` is a keyword of ``poison`` instead:
        ``"attacker_index"``, the client's number among the malicious clients (of the federation, or of the cohort where
        each has its own), int scalar from 0; ``"local_step"``, the place of the batch in the local pass, int scalar
        from 0. ``"last_update"``, ``"memory"`` and ``"local_step"`` are keywords of :meth:`loss` and :meth:`gradient`.
      keeps_state: whether malicious clients keep what clients keep from round to round, such as momentum; else each
        of their rounds is like a first one.
    """

    keeps_state = True  # or a field

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(FunctionAttack if cls is Attack else cls)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def poison(
        self, key: jax.Array, batch: Batch, *, positions: jax.Array, num_examples: jax.Array, num_classes: int
    ) -> Batch:
        """Poisons the examples that a malicious client trains on; see :class:`PoisonFn`."""
        del key, positions, num_examples, num_classes
        return batch

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, **_: Any) -> Uplink:
        """Forges the messages of malicious clients; see :class:`ForgeFn`."""
        del key, malicious
        return uplink

    def loss(self, losses: jax.Array, examined: Examined, batch: Batch, **_: Any) -> jax.Array:
        """What a malicious client minimises in the place of its training loss, example by example; by default that.

        It is called in local steps. What :attr:`needs` names is given by keyword, as to :meth:`gradient`.

        Args:
          losses: of each example in training ``[B]``, by the client rule's loss.
          examined: the client's model on the mini-batch.
          batch: the mini-batch, poisoned.

        Returns:
          The losses whose mean is minimised, like ``losses``; finite for benign clients too.
        """
        del examined, batch
        return losses

    def gradient(self, gradient: Params, w: Params, start: Params, **_: Any) -> Params:
        """What a malicious client follows in the place of the gradient of its training loss; by default that.

        It is called in local steps, wherever the client rule takes a gradient. What :attr:`needs` names is given by
        keyword.

        Args:
          gradient: of the training loss at ``w``, like ``params``.
          w: the client's parameters there, without those that it has for itself.
          start: where its local pass began, like ``w``.

        Returns:
          The gradient of the attacker's own loss, like ``params``.
        """
        del w, start
        return gradient

    def forge_for(self, own: Params, others: Deltas, weight: jax.Array, malicious: jax.Array) -> Deltas:
        """Forges what one client in a graph receives from its malicious neighbours.

        Args:
          own: the client's model.
          others: the models that its neighbours send, ``[D, *p]``.
          weight: of each neighbour for the client, ``[D]``; 0 where there is none.
          malicious: the neighbours that attack, bool ``[D]``.

        Returns:
          The models that reach the client; those of benign neighbours keep their bits.
        """
        del own, weight, malicious
        return others

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int) -> tuple[jax.Array, jax.Array]:
        """What the attacker wants the model to predict; see :class:`GoalFn`. Without it, anything wrong."""
        raise undefined(self, "goal")

    def init(self, key: jax.Array, params: Params) -> Any:
        """The memory of the attackers before the first round; by default none.

        Args:
          key: random key of the run.
          params: the global parameters, or their shapes.
        """
        del key, params
        return ()

    def rehearse(self, key: jax.Array, memory: Any, params: Params, batch: Batch, loss: LossOfModel) -> Any:
        """The memory at the beginning of a round in which a client attacks, before the local passes; by default as
        before.

        Args:
          key: random key of the round.
          memory: from ``init`` or the round before.
          params: the global parameters.
          batch: true examples of one of the attackers, drawn in every round.
          loss: ``(params, x, y) -> mean loss`` of the model on examples.
        """
        del key, params, batch, loss
        return memory

    def observe(self, memory: Any, update: Params, round_index: jax.Array) -> Any:
        """The memory after a round, of the same structure, shapes and dtypes; by default as before.

        Args:
          memory: from ``init`` or the round before.
          update: the round's change of the global parameters.
          round_index: of that round, from 0.
        """
        del update, round_index
        return memory

    poisons = _defines("poison")
    has_loss = _defines("loss")
    has_gradient = _defines("gradient")
    forges = _defines("forge")
    forges_for_each = _defines("forge_for")
    rehearses = _defines("rehearse")
    is_targeted = _defines("goal")

    @property
    def needs_labels(self) -> bool:
        """Whether it works with one class for each example only, as attacks with a goal do unless they say otherwise.

        Beside other targets the success of an attack is not measured.
        """
        return self.is_targeted

    def attackers(self, malicious: jax.Array, round_index: jax.Array) -> jax.Array:
        """Which of the malicious clients attack in a round, like ``malicious``, which is bool of any shape."""
        del round_index
        return malicious


class FunctionAttack(Attack):
    """An attack of functions, which are compared by identity; ``Attack(...)`` makes one.

    Attributes:
      poison: see :class:`PoisonFn`; None for honest examples.
      forge: see :class:`ForgeFn`; None for honest messages.
      needs: as of :class:`Attack`.
      goal: see :class:`GoalFn`; None if any wrong prediction is a success.
      active: see :class:`ActiveFn`; None for all rounds.
    """

    _made_of = ("forge", "poison")

    poison: PoisonFn | None = None
    forge: ForgeFn | None = None
    needs: frozenset[str] = frozenset()
    goal: GoalFn | None = None
    active: ActiveFn | None = None

    def attackers(self, malicious: jax.Array, round_index: jax.Array) -> jax.Array:
        return malicious if self.active is None else malicious & self.active(round_index)


@forwards("inner")
class WrappedAttack(Attack):
    """Another attack with something changed: a subclass overrides what differs."""

    @property
    def inner(self) -> Attack:
        """The attack inside, by default the field ``attack``."""
        return self.attack  # type: ignore[attr-defined]
