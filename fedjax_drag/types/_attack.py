"""The contract of an attack."""
# Fields of FunctionAttack stand in the place of methods.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax

from fedjax_drag.naming import name_of
from fedjax_drag.types._messages import Batch, Uplink
from fedjax_drag.types._part import Part, undefined

POISON_NEEDS = ("attacker_index",)
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


class Attack(Part):
    """What malicious clients do.

    An attack is a subclass that overrides some of the methods; on the sides that it leaves alone, malicious clients are
    honest. ``Attack(forge=function)``, by keyword or in the order of :class:`FunctionAttack`, makes one of functions.

    Attributes:
      needs: names of the keywords that ``forge`` must receive. ``"last_update"``: the last round's change of the global
        parameters, like ``params``. ``"root_delta"``: the delta of the server's own pass on its root data, like
        ``params``; only with a method that has one. ``"aggregate"``: ``(uplink) -> update``, the change of the global
        parameters that the server would make of such messages in this round, except for its own random draws. A name in
        :data:`POISON_NEEDS` is a keyword of ``poison`` instead: ``"attacker_index"``, the client's number among the
        malicious clients (of the federation, or of the cohort where each has its own), int scalar from 0.
      keeps_state: whether malicious clients keep what clients keep from round to round, such as momentum; else each
        of their rounds is like a first one.
    """

    keeps_state = True  # or a field

    if TYPE_CHECKING:

        def __init__(
            self,
            poison: PoisonFn | None = None,
            forge: ForgeFn | None = None,
            needs: frozenset[str] = frozenset(),
            goal: GoalFn | None = None,
            active: ActiveFn | None = None,
        ) -> None: ...

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

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int) -> tuple[jax.Array, jax.Array]:
        """What the attacker wants the model to predict; see :class:`GoalFn`. Without it, anything wrong."""
        raise undefined(self, "goal")

    @property
    def poisons(self) -> bool:
        """Whether the attack has a ``poison``."""
        return type(self).poison is not Attack.poison

    @property
    def forges(self) -> bool:
        """Whether the attack has a ``forge``."""
        return type(self).forge is not Attack.forge

    @property
    def is_targeted(self) -> bool:
        """Whether the attack has a ``goal``."""
        return type(self).goal is not Attack.goal

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

    poison: PoisonFn | None = None
    forge: ForgeFn | None = None
    needs: frozenset[str] = frozenset()
    goal: GoalFn | None = None
    active: ActiveFn | None = None

    def __repr__(self) -> str:
        return f"Attack({self.name})"

    @property
    def name(self) -> str:
        """The name of the function that made it."""
        return name_of(self.forge or self.poison)

    @property
    def poisons(self) -> bool:
        return self.poison is not None

    @property
    def forges(self) -> bool:
        return self.forge is not None

    @property
    def is_targeted(self) -> bool:
        return self.goal is not None

    def attackers(self, malicious: jax.Array, round_index: jax.Array) -> jax.Array:
        return malicious if self.active is None else malicious & self.active(round_index)


class WrappedAttack(Attack):
    """Another attack with something changed: a subclass says which, by ``inner``, and overrides what differs."""

    @property
    def inner(self) -> Attack:
        """The attack inside."""
        raise undefined(self, "inner")

    @property
    def keeps_state(self) -> bool:  # type: ignore[override]
        return self.inner.keeps_state

    @property
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    def poison(self, key: jax.Array, batch: Batch, **known: Any) -> Batch:
        return self.inner.poison(key, batch, **known)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, **knowledge: Any) -> Uplink:
        return self.inner.forge(key, uplink, malicious, **knowledge)

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int) -> tuple[jax.Array, jax.Array]:
        return self.inner.goal(x, y, num_classes)

    def attackers(self, malicious: jax.Array, round_index: jax.Array) -> jax.Array:
        return self.inner.attackers(malicious, round_index)

    @property
    def poisons(self) -> bool:
        return self.inner.poisons

    @property
    def forges(self) -> bool:
        return self.inner.forges

    @property
    def is_targeted(self) -> bool:
        return self.inner.is_targeted

    @property
    def needs_labels(self) -> bool:
        return self.inner.needs_labels
