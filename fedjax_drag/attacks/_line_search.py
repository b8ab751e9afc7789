"""Attacks whose strength is searched for through the server's rule, in every round anew."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import known, mean_and_std, replace_malicious
from fedjax_drag.attacks._harm import OBJECTIVES, Objective, harm_of
from fedjax_drag.types import Attack, Params, Scalar, Uplink
from fedjax_drag.types._part import undefined

_LARGEST = 1e9
"""Strengths beyond that are of no use, and their messages would overflow."""


class Searched(Attack):
    """All malicious clients send :meth:`push` with the strength of :func:`line_search`.

    Attributes:
      objective: the harm, see :func:`~fedjax_drag.attacks._harm.harm_of`.
      evaluations: of the rule, at least as many as ``starts``.
      starts: strengths that are tried first, at least one, none above a billion.
      step: > 0, the first beyond them.
      ratio: in (0, 1), by which steps shrink.
    """

    objective: Objective = "distance"
    evaluations: int = 20
    starts: Sequence[float] = (0.0,)
    step: Scalar = 10.0
    ratio: Scalar = 0.8

    def check(self) -> None:
        checks.one_of("objective", self.objective, OBJECTIVES)
        starts = self.starts
        if isinstance(starts, str) or not isinstance(starts, Sequence) or not starts:
            raise checks.ArgumentError(
                "starts", "must be a list of strengths to begin with, such as [0.0]", given=starts
            )
        for start in starts:
            checks.in_range("starts", start, -_LARGEST, _LARGEST)
        checks.count("evaluations", self.evaluations, len(starts))
        checks.positive("step", self.step)
        checks.in_range("ratio", self.ratio, 0.0, 1.0, open_low=True, open_high=True)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"aggregate"})

    def push(self, strength: Float[Array, ""], mean: Uplink, std: Uplink) -> Uplink:
        """Makes the message from mean and standard deviation of the benign ones, without the client axis."""
        raise undefined(self, "push")

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
        mean, std = mean_and_std(uplink, benign)

        def sent(strength: jax.Array) -> Uplink:
            return replace_malicious(uplink, malicious & benign.any(), self.push(strength, mean, std))

        def harm(strength: jax.Array) -> jax.Array:
            return harm_of(self.objective, aggregate(sent(strength)), mean.delta)

        first = jnp.asarray(self.starts, tree.norm(mean.delta).dtype)
        return sent(line_search(harm, first, self.evaluations, self.step, self.ratio))


class _Search(NamedTuple):
    """The most harmful strength so far, its harm, the next step, and whether every step so far was an improvement."""

    strength: Float[Array, ""]
    harm: Float[Array, ""]
    step: Float[Array, ""]
    expands: Bool[Array, ""]


def line_search(
    harm: Callable[[jax.Array], jax.Array], starts: Float[Array, " starts"], evaluations: int, step: Any, ratio: Any
) -> Float[Array, ""]:
    """The most harmful of ``evaluations`` strengths, in as many evaluations of ``harm``.

    The search goes on from the most harmful of ``starts``, the first of those that are equal: each trial is a step
    beyond the best strength so far. As long as trials are more harmful, the step doubles; after the first that is not,
    every step is ``ratio`` times the one before. No step goes beyond a billion. What is returned is at least as harmful
    as all that was tried.

    Args:
      harm: of a strength; -inf where it is none.
      starts: see above.
      evaluations: at least as many as ``starts``.
      step: the first.
      ratio: in (0, 1).
    """

    # One loop for starts and steps, so that the rule is compiled once.
    def attempt(trial: jax.Array, best: _Search) -> _Search:
        is_start = trial < len(starts)
        beyond = jnp.minimum(best.strength + best.step, _LARGEST)
        strength = jnp.where(is_start, starts[jnp.minimum(trial, len(starts) - 1)], beyond)
        reached = harm(strength).astype(starts.dtype)
        better = reached > best.harm
        expands = best.expands & (better | is_start)
        factor = jnp.where(is_start, 1, jnp.where(expands, 2, ratio))
        next_step = (best.step * factor).astype(starts.dtype)
        found = _Search(strength, reached, next_step, expands)
        return tree.where(better, found, best._replace(step=next_step, expands=expands))

    lowest = jnp.full((), -jnp.inf, starts.dtype)
    first = _Search(starts[0], lowest, jnp.asarray(step, starts.dtype), jnp.ones((), bool))
    return jax.lax.fori_loop(0, evaluations, attempt, first).strength
