"""Rules that are weights: the update is a mean of ``v_m = own_m g_m + along_m r`` over the clients.

A rule says what the weights of a client are; :class:`WeightedAggregator` does everything else: it adds up deltas that
come in chunks, leaves out clients that do not count, keeps the arithmetic within float32, and reports the metrics.
"""
# Fields of weighted_rule stand in the place of methods.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportAssignmentType=false

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import tree
from fedjax_drag.checks import ArgumentError
from fedjax_drag.naming import name_of
from fedjax_drag.ops.rules import SummedAggregator, average, cosine_to_sum
from fedjax_drag.ops.screening import stateless
from fedjax_drag.types import Deltas, InitFn, Params, State
from fedjax_drag.types._part import undefined


@dataclasses.dataclass(frozen=True)
class Clients:
    """What a weight may depend on: the deltas of a chunk of clients and what is measured on them, ``[B]``.

    Attributes:
      deltas: ``g_m``, ``[B, *p]``.
      reference: ``r``, like the parameters; None for a rule without one.
      valid: ``[B]`` bool, the clients that count.
    """

    deltas: Deltas
    reference: Params | None
    valid: jax.Array

    @functools.cached_property
    def norm(self) -> Float[Array, " clients"]:
        """``||g_m||``; 0 where it is not finite."""
        return tree.norms(self.deltas)

    @functools.cached_property
    def cosine(self) -> Float[Array, " clients"]:
        """``cos(g_m, r)``; 0 where either vector is zero."""
        return tree.cosines(self.deltas, self._known("cosine"))

    @functools.cached_property
    def angle(self) -> Float[Array, " clients"]:
        """Angle between ``g_m`` and ``r`` in radians; pi/2 where either vector is zero."""
        return tree.angles(self.deltas, self._known("angle"))

    def _known(self, measure: str) -> Params:
        if self.reference is None:
            said = "the rule has no reference; must have one, has_reference = True with a method or function reference"
            raise ArgumentError(f"clients.{measure}", said)
        return self.reference


class Weights(NamedTuple):
    """The weights of each client, ``[B]`` or one number for all.

    Attributes:
      own: coefficient of the client's delta; None if the deltas have no part in the update.
      along: coefficient of the reference; None if it has no part in the update.
      mass: what the client adds to the divisor; 1 gives the mean over the clients.
      metrics: what to report of each client beside its weight and cosine, by name, ``[B]``.
    """

    own: Any = None
    along: Any = None
    mass: Any = 1.0
    metrics: dict[str, jax.Array] | None = None


class Kept(NamedTuple):
    """What is kept of each client once its delta has been added to the sum, ``[S]``.

    Attributes:
      valid: the clients that count.
      norm: norm of the delta.
      cosine: cosine of the delta to the reference; ``()`` without one.
      weights: the coefficients that the sums were formed with, 0 for clients that do not count.
    """

    valid: jax.Array
    norm: jax.Array
    cosine: Any
    weights: Weights


class Step(NamedTuple):
    """What a round comes to.

    Attributes:
      update: the mean of ``v_m``, like the parameters.
      metrics: ``weight``, ``cosine`` and those of the weights.
    """

    update: Params
    metrics: dict[str, jax.Array]


class FirstPass(NamedTuple):
    """A pass over the clients before the one that counts, for a state that the weights need.

    Attributes:
      needed: ``(state) -> bool``, scalar: whether the round has one.
      absorb: ``(mean, state, *, kept, **extras) -> state``; see :meth:`WeightedAggregator.absorb_mean`.
    """

    needed: Callable[[State], jax.Array]
    absorb: Callable[..., State]


class WeightedAggregator(SummedAggregator):
    """A rule that says only its weights: ``theta += sum_m v_m / sum_m mass_m`` with ``v_m = own_m g_m + along_m r``.

    In ``v_m`` the delta and the reference have the same length: the reference that of the client's delta
    (``length = "client"``, ``||g_m|| r / ||r||`` takes the place of ``r``), or the delta that of the reference
    (``"reference"``, ``||r|| g_m / ||g_m||`` takes the place of ``g_m``). Without a reference: ``"client"``.

    A subclass has :meth:`weigh`, and what else it needs. With ``has_first_pass`` the plain mean of the deltas goes to
    :meth:`absorb_mean` before weights are computed, in the rounds of ``needs_first_pass``.
    """

    length = "client"
    has_reference = False

    def weigh(self, clients: Clients, state: State, **extras: Any) -> Weights:
        """The weights of a chunk of clients, none of which depends on another client.

        Args:
          clients: the chunk.
          state: of the rule.
          **extras: as for :class:`~fedjax_drag.types.Aggregator`, those of clients ``[B]``.
        """
        raise undefined(self, "weigh")

    def reference(self, state: State, **extras: Any) -> Params:
        """``r``, like the parameters, from the rule's state and extras. Only with ``has_reference``."""
        raise undefined(self, "reference")

    def absorb_mean(self, mean: Params, state: State, *, kept: Kept, **extras: Any) -> State:
        """The state that the weights need, from a first pass over the clients. Only with ``has_first_pass``.

        Args:
          mean: the plain mean of the deltas.
          state: of the rule.
          kept: of each client.
          **extras: as for :class:`~fedjax_drag.types.Aggregator`.
        """
        raise undefined(self, "absorb_mean")

    def after(self, step: Step, state: State, *, params: Params, kept: Kept, **extras: Any) -> tuple[Step, State]:
        """What else becomes of a step, and the state of the next round.

        Args:
          step: what the round comes to.
          state: of the rule.
          params: the parameters before the step.
          kept: of each client.
          **extras: as for :class:`~fedjax_drag.types.Aggregator`.
        """
        del params, kept, extras
        return step, state

    @property
    def compared(self) -> tuple[str, ...]:
        # Without a reference the cosine is that to the update, which is known when all clients have been added up.
        return () if self.has_reference else ("cosine",)

    def compare(self, deltas: Deltas, total: Any, valid: jax.Array) -> dict[str, jax.Array]:
        return {} if self.has_reference else {"cosine": cosine_to_sum(deltas, total, valid)}

    def accumulate(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, first_pass: Any = False, **extras: Any
    ) -> tuple[Params, Kept]:
        del params
        clients = Clients(deltas, self.reference(state, **extras) if self.has_reference else None, valid)
        weights = self.weigh(clients, state, **extras)
        if weights.own is not None:
            own = weights.own * tree.inverse(clients.norm) if self.length == "reference" else weights.own
            weights = weights._replace(own=jnp.where(first_pass, 1.0, own))  # a first pass takes the plain mean
        used = _counted(weights, valid)
        kept = Kept(valid, clients.norm, clients.cosine if self.has_reference else (), used)
        return () if used.own is None else tree.weighted_sum(used.own, deltas), kept

    def prepare(self, total: Params, state: State, kept: Kept, *, valid: jax.Array, **extras: Any) -> State:
        return self.absorb_mean(average(total, valid), state, kept=kept, **extras)

    def finish(
        self, params: Params, total: Params, state: State, kept: Kept, *, valid: jax.Array, **extras: Any
    ) -> tuple[Params, State]:
        del valid
        r = self.reference(state, **extras) if self.has_reference else None
        step, state = self.after(
            _step(total, kept, r, self.length == "reference"), state, params=params, kept=kept, **extras
        )
        return tree.move(params, step.update), state._replace(metrics=step.metrics)


def _as_it_is(step: Step, state: State, **_: Any) -> tuple[Step, State]:
    return step, state


class weighted_rule(WeightedAggregator):
    """:class:`WeightedAggregator` by functions.

    Args:
      weigh: ``(clients, state, **extras) -> weights`` of a chunk, as :meth:`WeightedAggregator.weigh`.
      init: as of :class:`~fedjax_drag.types.Aggregator`, a NamedTuple with a field ``metrics``; default
        :func:`~fedjax_drag.ops.screening.stateless`.
      reference: ``(state, **extras) -> r``, like the parameters.
      length: as of :class:`WeightedAggregator`.
      before: a first pass, which completes the state before weights are computed.
      after: ``(step, state, *, params, kept, **extras) -> (step, state)``, as :meth:`WeightedAggregator.after`.
      needs: as of :class:`~fedjax_drag.types.Aggregator`.
      of_mean: as of :class:`~fedjax_drag.types.Sums`.
    """

    weigh: Callable[..., Weights]
    init: InitFn = stateless()
    _: dataclasses.KW_ONLY
    reference: Callable[..., Params] | None = None
    length: Literal["client", "reference"] = "client"
    before: FirstPass | None = None
    after: Callable[..., tuple[Step, State]] = _as_it_is
    needs: frozenset[str] = frozenset()
    of_mean: bool = False

    def __repr__(self) -> str:
        return f"Aggregator({self.name})"

    @property
    def name(self) -> str:
        """The name of the function that made it."""
        return name_of(self.weigh)

    @property
    def has_reference(self) -> bool:
        return self.reference is not None

    @property
    def has_first_pass(self) -> bool:
        return self.before is not None

    needs_first_pass = property(operator.attrgetter("before.needed"))
    absorb_mean = property(operator.attrgetter("before.absorb"))


def _counted(weights: Weights, valid: jax.Array) -> Weights:
    """The weights as ``[B]``, 0 for clients that do not count."""

    def counted(weight: Any) -> jax.Array | None:
        return None if weight is None else jnp.where(valid, valid.astype(jnp.float32) * weight, 0.0)

    return weights._replace(own=counted(weights.own), along=counted(weights.along), mass=counted(weights.mass))


def _step(total: Params, kept: Kept, reference: Params | None, matched: bool) -> Step:
    """The mean of ``v_m``. No product of two lengths is formed, which might not be representable."""
    own, along, mass, metrics = kept.weights
    per_mass = tree.inverse(mass.sum())
    length = jnp.ones(()) if reference is None else tree.norm(reference)
    if along is None:
        factor = per_mass * length if matched else per_mass
        update, weight = tree.scale(factor, total), factor * own
    else:
        # How far the mean reaches along the reference, in units of it or, for the clients' lengths, of its direction.
        distance = (per_mass * along).sum() if matched else (per_mass * along * kept.norm).sum()
        per_length = jnp.ones(()) if matched else tree.inverse(length)
        update = jax.tree.map(lambda r: distance * (per_length * tree.accurate(r)), reference)
        weight = jnp.zeros(kept.norm.shape)
        if own is not None:
            factor = length if matched else jnp.ones(())
            update = jax.tree.map(lambda g, r: factor * (per_mass * g) + r, total, update)
            weight = factor * (per_mass * own)
    cosine = {} if reference is None else {"cosine": kept.cosine}
    return Step(update, {"weight": weight, **cosine, **(metrics or {})})
