"""An attack optimised through the rule that the server uses."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import centred, known, mean_and_std, replace_malicious
from fedjax_drag.attacks._harm import OBJECTIVES, Objective, harm_of, unit
from fedjax_drag.types import Attack, Deltas, Params, Scalar, Uplink

_RUNGS = 8  # lengths tried along each direction: even fractions of the budget
_STEPS = (0.0625, 0.03125, 0.015625)  # of the budget, tried on both sides of the best length

_FIRST_STEP = 0.5  # of the budget, along the gradient


class optimised(Attack):
    """Malicious clients all send the delta that does the most harm through the server's own rule.

    Projected gradient ascent on that delta ``v``, where ``g`` is the mean of the benign deltas and ``u(v)`` the
    change of the global parameters in a round in which malicious clients send ``v``:

        maximise harm(v) subject to ||v - g|| <= budget * max_m ||g_m - g|| over benign m.

    It starts from the best of eight line searches, along and against each of: ``g`` (the direction of inner product
    manipulation and of sign flips), its signs, the coordinates' standard deviations (that of ALIE), and these with the
    signs of ``g``. Each tries 0 and every eighth of the budget, then both sides of the best length by 1/16, 1/32 and
    1/64. From there every step has a fixed length along the gradient. A step that does not increase the harm is undone,
    and the next ones are half as long. So ``v`` is at least as harmful as the result of every line search. It is a
    local optimum at best; if the rule has no gradient, as one that selects a client, it is the result of the best line
    search. A harm that is not finite counts as -inf.

    If the benign clients agree, the budget is 0 and ``v`` is what they send. ``aux`` stays honest.

    Args:
      objective: the harm. ``"against"``: ``-<u(v), g> / ||g||``, progress undone. ``"distance"``: ``||u(v) - g||``.
      steps: >= 0, each one evaluation of the rule with its gradient. There are one more for the start, and 120 without
        gradient for the line searches.
      budget: > 0, largest distance from the benign mean, in units of the largest distance of a benign delta.

    Raises:
      ValueError: if an argument is out of range.

    Knows:
      Everything: the messages of all benign clients, the server's rule with its state, and the root delta if the rule
      uses one. Of the rule's random draws it knows only their distribution.

    References:
      The problem is (1) of Shejwalkar and Houmansadr, Manipulating the Byzantine: optimizing model poisoning attacks
      and defenses for federated learning, NDSS 2021, as are three of the directions. There the search is for the
      length along one of them only, and the constraint is the rule's own choice instead of a budget;
      :func:`optimal_alie` and :func:`optimal_ipm`, after ByzFL, search for the most harmful length along one of them.
    """

    objective: Objective = "against"
    steps: int = 10
    budget: Scalar = 1.0

    def check(self) -> None:
        checks.one_of("objective", self.objective, OBJECTIVES)
        checks.count("steps", self.steps)
        checks.positive("budget", self.budget)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"aggregate"})

    def forge(
        self,
        key: jax.Array,
        uplink: Uplink,
        malicious: jax.Array,
        *,
        aggregate: Callable[[Uplink], Params],
        valid: Any = None,
        **_: Any,
    ) -> Uplink:
        del key
        benign = known(malicious, "full", uplink, valid)
        attacked = malicious & benign.any()
        mean, std = (moment.delta for moment in mean_and_std(uplink, benign))
        radius = self.budget * tree.norms(centred(uplink.delta, mean, benign)).max()

        def sent(offset: Params) -> Uplink:
            forged = _for_each(tree.add(mean, offset), len(malicious))
            return uplink._replace(delta=replace_malicious(uplink.delta, attacked, forged))

        def harm(offset: Params) -> jax.Array:
            return harm_of(self.objective, aggregate(sent(offset)), mean)

        start = _best_on_lines(harm, _axes(mean, std), radius)
        return sent(_ascend(harm, start, radius, self.steps))


def _axes(mean: Params, std: Params) -> list[Params]:
    """Directions along which known attacks push: the mean, its signs, the standard deviations, these with its signs."""
    sign = jax.tree.map(jnp.sign, mean)
    return [mean, sign, std, jax.tree.map(jnp.multiply, std, sign)]


def _best_on_lines(harm: Callable[[Params], jax.Array], axes: Sequence[Params], radius: jax.Array) -> Params:
    """The most harmful result of the line searches, one along each axis and one against it."""
    basis = jax.tree.map(lambda *leaves: radius * jnp.stack(leaves), *map(unit, axes))
    directions = jnp.asarray(np.kron(np.eye(len(axes)), [[-1.0], [1.0]]), radius.dtype)
    rungs = [(0.0, rung) for rung in np.linspace(0, 1, _RUNGS + 1)]
    moves = [(1.0, side * step) for step in _STEPS for side in (1, -1)]
    plan = jnp.asarray(rungs + moves, radius.dtype)

    def search(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
        def attempt(best: _Trial, planned: jax.Array) -> tuple[_Trial, None]:
            from_best, step = planned
            length = jnp.clip(from_best * best.length + step, 0, 1)
            trial = _Trial(length, harm(tree.weighted_sum(length * direction, basis)))
            return tree.where(trial.harm > best.harm, trial, best), None

        nothing = _Trial(jnp.zeros_like(radius), jnp.full_like(radius, -jnp.inf))
        best, _ = jax.lax.scan(attempt, nothing, plan)
        return best.length * direction, best.harm

    offsets, harms = jax.lax.map(search, directions)
    return tree.weighted_sum(offsets[jnp.argmax(harms)], basis)


class _Trial(NamedTuple):
    """A length along a line, as a share of the budget, and its harm."""

    length: jax.Array
    harm: jax.Array


class _Ascent(NamedTuple):
    """The most harmful offset so far, its harm with the gradient, and the length of the next step."""

    offset: Params
    harm: jax.Array
    gradient: Params
    length: jax.Array


def _ascend(harm: Callable[[Params], jax.Array], start: Params, radius: jax.Array, steps: int) -> Params:
    """Projected gradient ascent: the most harmful offset on the way from ``start``, at most ``radius`` long."""

    def step(_: Any, best: _Ascent) -> _Ascent:
        ahead = tree.add(best.offset, tree.scale(best.length, unit(best.gradient)))
        inside = tree.scale(jnp.minimum(1.0, radius * tree.inverse(tree.norm(ahead))), ahead)
        there = _Ascent(inside, *jax.value_and_grad(harm)(inside), best.length)
        return tree.where(there.harm > best.harm, there, best._replace(length=best.length / 2))

    # The first step has length 0 and computes the gradient at the start: so the rule is compiled once less.
    none = jnp.full_like(radius, -jnp.inf)
    first = _Ascent(start, none, tree.zeros_like(start), _FIRST_STEP * radius)
    return jax.lax.fori_loop(0, steps + 1, step, first).offset


def _for_each(row: Params, size: int) -> Deltas:
    """``size`` copies of a row, as a product: the derivative of a broadcast is many times slower on CPU."""

    def leaf(x: jax.Array) -> jax.Array:
        copies = tree.product(jnp.ones((size, 1), x.dtype), x.reshape(1, -1))
        return copies.reshape(size, *x.shape)

    return jax.tree.map(leaf, row)
