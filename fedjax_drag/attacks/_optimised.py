"""An attack optimised through whatever rule the server uses."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import centred, known, mean_and_std, replace_malicious
from fedjax_drag.types import Attack, Deltas, Params

_RUNGS = 8  # lengths tried along each direction: even fractions of the budget
_STEPS = (0.0625, 0.03125, 0.015625)  # of the budget, from the best of them to either side

_FIRST_STEP = 0.5  # of the budget, along the gradient


def optimised(objective: Literal["against", "distance"] = "against", steps: int = 10, budget: Any = 1.0) -> Attack:
    """Malicious clients all send the delta that does most harm through the server's own rule.

    Projected gradient ascent on that delta ``v``, with ``g`` the mean of the benign deltas and ``u(v)`` the change of
    the global parameters that the rule makes of the round's messages:

        maximise harm(v) subject to ||v - g|| <= budget * max_m ||g_m - g|| over benign m.

    It starts from the best of eight line searches, along and against each of: ``g`` (the direction of inner product
    manipulation and of sign flips), its signs, the coordinates' standard deviations (that of ALIE), and these with the
    signs of ``g``. Each tries 0 and every eighth of the budget, then both sides of the best length by 1/16, 1/32 and
    1/64. From there every step has a fixed length along the gradient. One that does no more harm is taken back, and the
    next ones are half as long. So ``v`` is never less harmful than what a line search came to. It is a local optimum at
    best, and where the rule has no gradient, as one that chooses another client, the best of the lines itself. What is
    not finite counts as no harm.

    If the benign clients agree, there is nothing to hide among and ``v`` is what they send. ``aux`` stays honest.

    Args:
      objective: the harm. ``"against"``: ``-<u(v), g> / ||g||``, progress undone. ``"distance"``: ``||u(v) - g||``.
      steps: >= 0, each an evaluation of the rule with its gradient, as the start is; 120 without it come before, for
        the line searches.
      budget: > 0, how far from the benign mean, in distances of the benign delta that is farthest.

    Raises:
      ValueError: if an argument is out of range.

    Knows:
      Everything: the messages of all benign clients, the server's rule with its state, and where the rule uses root
      data also what these gave. Of the rule's random draws it knows only their distribution.

    References:
      The problem is (1) of Shejwalkar and Houmansadr, Manipulating the Byzantine: optimizing model poisoning attacks
      and defenses for federated learning, NDSS 2021, from where three of the directions are. There only the length
      along one of them is searched for, and the constraint is the rule's own choice instead of a budget; ByzFL's
      optimal attacks search for the length that does most harm by ``"distance"``.
    """
    checks.one_of("objective", objective, ("against", "distance"))
    checks.count("steps", steps)
    checks.positive("budget", budget)

    def forge(key, uplink, malicious, *, aggregate, **_):
        del key
        benign = known(malicious, "full", uplink)
        attacked = malicious & benign.any()
        mean, std = (moment.delta for moment in mean_and_std(uplink, benign))
        radius = budget * tree.norms(centred(uplink.delta, mean, benign)).max()

        def sent(offset):
            forged = _for_each(tree.add(mean, offset), len(malicious))
            return uplink._replace(delta=replace_malicious(uplink.delta, attacked, forged))

        def harm(offset):
            update = jax.tree.map(tree.accurate, aggregate(sent(offset)))
            if objective == "distance":
                value = tree.norm(tree.subtract(update, mean))
            else:
                value = -sum(jax.tree.leaves(jax.tree.map(jnp.vdot, update, _unit(mean))))
            return jnp.where(jnp.isfinite(value), value, -jnp.inf)

        start = _best_on_lines(harm, _axes(mean, std), radius)
        return sent(_ascend(harm, start, radius, steps))

    return Attack(forge=forge, needs=frozenset({"aggregate"}))


def _axes(mean: Params, std: Params) -> list[Params]:
    """What known attacks push the mean along: itself, its signs, the standard deviations, these with its signs."""
    sign = jax.tree.map(jnp.sign, mean)
    return [mean, sign, std, jax.tree.map(jnp.multiply, std, sign)]


def _best_on_lines(harm: Callable[[Params], jax.Array], axes: Sequence[Params], radius: jax.Array) -> Params:
    """The most harmful of the offsets that line searches come to, one along each axis and one against it."""
    basis = jax.tree.map(lambda *leaves: radius * jnp.stack(leaves), *map(_unit, axes))
    directions = jnp.asarray(np.kron(np.eye(len(axes)), [[-1.0], [1.0]]), radius.dtype)
    rungs = [(0.0, rung) for rung in np.linspace(0, 1, _RUNGS + 1)]
    moves = [(1.0, side * step) for step in _STEPS for side in (1, -1)]
    plan = jnp.asarray(rungs + moves, radius.dtype)

    def search(direction):
        def attempt(best, planned):
            from_best, step = planned
            length = jnp.clip(from_best * best[0] + step, 0, 1)
            tried = length, harm(tree.weighted_sum(length * direction, basis))
            return tree.where(tried[1] > best[1], tried, best), None

        nothing = jnp.zeros_like(radius), jnp.full_like(radius, -jnp.inf)
        length, most = jax.lax.scan(attempt, nothing, plan)[0]
        return length * direction, most

    offsets, harms = jax.lax.map(search, directions)
    return tree.weighted_sum(offsets[jnp.argmax(harms)], basis)


class _Ascent(NamedTuple):
    """The most harmful offset so far, its harm with the gradient, and the length of the next step."""

    offset: Params
    harm: jax.Array
    gradient: Params
    length: jax.Array


def _ascend(harm: Callable[[Params], jax.Array], start: Params, radius: jax.Array, steps: int) -> Params:
    """The most harmful offset found on the way up from ``start``, at most ``radius`` long."""

    def step(_, best):
        ahead = tree.add(best.offset, tree.scale(best.length, _unit(best.gradient)))
        inside = tree.scale(jnp.minimum(1.0, radius * tree.inverse(tree.norm(ahead))), ahead)
        there = _Ascent(inside, *jax.value_and_grad(harm)(inside), best.length)
        return tree.where(there.harm > best.harm, there, best._replace(length=best.length / 2))

    # The first step stays where it is and finds the gradient there: so the rule is compiled once less.
    none = jnp.full_like(radius, -jnp.inf)
    first = _Ascent(start, none, tree.zeros_like(start), _FIRST_STEP * radius)
    return jax.lax.fori_loop(0, steps + 1, step, first).offset


def _unit(vector: Params) -> Params:
    """``vector`` at length 1; zeros if it has none or is not finite."""
    length = tree.norm(vector)
    return tree.where(length > 0, tree.scale(tree.inverse(length), vector), tree.zeros_like(vector))


def _for_each(row: Params, size: int) -> Deltas:
    """``size`` copies of a row, as a product: the derivative of a broadcast is many times slower on CPU."""

    def leaf(x):
        copies = jnp.dot(jnp.ones((size, 1), x.dtype), x.reshape(1, -1), precision=jax.lax.Precision.HIGHEST)
        return copies.reshape(size, *x.shape)

    return jax.tree.map(leaf, row)
