"""Rules that are weights: the update is a mean of ``v_m = own_m g_m + along_m r`` over the clients.

A rule says what the weights of a client are; :func:`weighted_rule` does everything else: it adds up deltas that come in
chunks, leaves out clients that do not count, keeps the arithmetic within float32, and reports the metrics.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.ops.screening import stateless
from fedjax_drag.ops.sums import average, cosine_to_sum, summed_rule
from fedjax_drag.types import Aggregator, Deltas, Params, State, Sums


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
    def norm(self) -> jax.Array:
        """``||g_m||``; 0 where it is not finite."""
        return tree.norms(self.deltas)

    @functools.cached_property
    def cosine(self) -> jax.Array:
        """``cos(g_m, r)``; 0 where either vector is zero."""
        return tree.cosines(self.deltas, self.reference)

    @functools.cached_property
    def angle(self) -> jax.Array:
        """Angle between ``g_m`` and ``r`` in radians; pi/2 where either vector is zero."""
        return tree.angles(self.deltas, self.reference)


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
      absorb: ``(mean, state, *, kept, **extras) -> state``, given the plain mean of the deltas.
    """

    needed: Callable[[State], jax.Array]
    absorb: Callable[..., State]


def weighted_rule(
    weigh: Callable[..., Weights],
    init: Callable[[Params], State] | None = None,
    *,
    reference: Callable[..., Params] | None = None,
    length: Literal["client", "reference"] = "client",
    before: FirstPass | None = None,
    after: Callable[..., tuple[Step, State]] | None = None,
    needs: frozenset[str] = frozenset(),
) -> Aggregator:
    """The rule ``theta += sum_m v_m / sum_m mass_m`` with ``v_m = own_m g_m + along_m r``.

    In ``v_m`` the delta and the reference have the same length: the reference that of the client's delta, or the delta
    that of the reference.

    Args:
      weigh: ``(clients, state, **extras) -> weights`` of a chunk of :class:`Clients`, none of which sees another.
      init: as of :class:`~fedjax_drag.types.Aggregator`; default :func:`~fedjax_drag.ops.screening.stateless`.
      reference: ``(state, **extras) -> r``, like the parameters.
      length: ``"client"`` takes ``||g_m|| r / ||r||`` for ``r``; ``"reference"`` takes ``||r|| g_m / ||g_m||`` for
        ``g_m``. Without a reference: ``"client"``.
      before: a first pass, which completes the state before weights are computed.
      after: ``(step, state, *, params, kept, **extras) -> (step, state)``: what else becomes of the :class:`Step`, and
        the state of the next round.
      needs: as of :class:`~fedjax_drag.types.Aggregator`.
    """
    matched = length == "reference"

    def accumulate(
        params: Params, deltas: Deltas, state: State, *, valid: jax.Array, first_pass: Any = False, **extras: Any
    ) -> tuple[Params, Kept]:
        del params
        clients = Clients(deltas, reference(state, **extras) if reference else None, valid)
        weights = weigh(clients, state, **extras)
        own = weights.own
        if own is not None:
            own = own * tree.inverse(clients.norm) if matched else own
            own = _counted(jnp.where(first_pass, 1.0, own), valid)
        along = None if weights.along is None else _counted(weights.along, valid)
        used = weights._replace(own=own, along=along, mass=_counted(weights.mass, valid))
        kept = Kept(valid, clients.norm, clients.cosine if reference else (), used)
        return () if own is None else tree.weighted_sum(own, deltas), kept

    def absorb(total: Params, state: State, kept: Kept, *, valid: jax.Array, **extras: Any) -> State:
        assert before is not None
        return before.absorb(average(total, valid), state, kept=kept, **extras)

    def finish(
        params: Params, total: Params, state: State, kept: Kept, *, valid: jax.Array, **extras: Any
    ) -> tuple[Params, State]:
        del valid
        r = reference(state, **extras) if reference else None
        step = _step(total, kept, r, matched)
        if after:
            step, state = after(step, state, params=params, kept=kept, **extras)
        return tree.move(params, step.update), state._replace(metrics=step.metrics)

    passes = (before.needed, absorb) if before else (None, None)
    # Without a reference the cosine is that to the update, which is known when all clients have been added up.
    hindsight = {} if reference else {"cosine": cosine_to_sum}
    return summed_rule(init or stateless(), Sums(accumulate, finish, *passes), needs, hindsight=hindsight)


def root_delta(state: State, *, root_delta: Params, **_: Any) -> Params:
    """The reference of rules that own root data: the delta of the server's own local pass."""
    del state
    return root_delta


def _counted(weight: Any, valid: jax.Array) -> jax.Array:
    """A weight, ``[B]`` or one number for all, on the clients that count; 0 on the others."""
    return jnp.where(valid, valid.astype(jnp.float32) * weight, 0.0)


def _step(total: Params, kept: Kept, reference: Params | None, matched: bool) -> Step:
    """The mean of ``v_m``. No product of two lengths is formed, which might not be representable."""
    own, along, mass, metrics = kept.weights
    unit = tree.inverse(mass.sum())
    length = () if reference is None else tree.norm(reference)
    factor = unit * length if matched else unit
    parts = []
    if own is not None:
        parts.append(tree.scale(factor, total))
    if along is not None and matched:
        pull = (unit * along).sum()
        parts.append(jax.tree.map(lambda r: pull * tree.accurate(r), reference))
    elif along is not None:
        pull = (unit * along * kept.norm).sum()
        parts.append(jax.tree.map(lambda r: pull * (tree.inverse(length) * tree.accurate(r)), reference))
    weight = jnp.zeros(kept.norm.shape) if own is None else own * factor
    cosine = {} if reference is None else {"cosine": kept.cosine}
    return Step(functools.reduce(tree.add, parts), {"weight": weight, **cosine, **(metrics or {})})
