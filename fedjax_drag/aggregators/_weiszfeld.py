"""Smoothed Weiszfeld iteration for the geometric median, shared by the rules built on it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.types import Deltas, Params


class Weiszfeld(NamedTuple):
    """Result of :func:`weiszfeld`.

    Attributes:
      point: the geometric median, like ``params``.
      weight: its coefficients on the deltas ``[S]``, summing to 1.
      iterations: steps taken until the stopping rule held.
      residual: length of the last step relative to the mean distance to the deltas.
    """

    point: Params
    weight: jax.Array
    iterations: jax.Array
    residual: jax.Array


def weiszfeld(deltas: Deltas, mass: jax.Array, smoothing: Any, tolerance: Any, max_iterations: int) -> Weiszfeld:
    """Minimises ``sum_m mass_m ||z - g_m||`` over z, starting from the weighted mean.

    Each step takes ``z <- sum_m w_m g_m / sum_m w_m`` with ``w_m = mass_m / max(smoothing, ||z - g_m||)``, until a
    step is shorter than ``tolerance`` times the mean distance. The loop is a scan whose
    steps after convergence are skipped, so that it can be differentiated in reverse.

    Args:
      deltas: ``[S, *p]``.
      mass: non-negative weights ``[S]``; clients of mass 0 are absent.
      smoothing: lower bound on a distance, > 0, in the units of the deltas.
      tolerance: relative length of the last step.
      max_iterations: static bound on the number of steps.
    """
    mass = mass * tree.inverse(mass.sum())

    def step(now: Weiszfeld) -> Weiszfeld:
        offsets = jax.tree.map(lambda g, z: tree.accurate(g) - z, deltas, now.point)
        distance = tree.norms(offsets)
        closeness = mass / jnp.maximum(distance, smoothing)
        weight = closeness * tree.inverse(closeness.sum())
        point = tree.weighted_sum(weight, deltas)
        moved = tree.norm(tree.subtract(point, now.point))
        return Weiszfeld(point, weight, now.iterations + 1, moved * tree.inverse((mass * distance).sum()))

    def guarded(now: Weiszfeld, _: None) -> tuple[Weiszfeld, None]:
        return jax.lax.cond(now.residual > tolerance, step, lambda done: done, now), None

    start = Weiszfeld(tree.weighted_sum(mass, deltas), mass, jnp.zeros((), int), jnp.full((), jnp.inf, mass.dtype))
    return jax.lax.scan(guarded, start, length=max_iterations)[0]
