"""Newton's method for the geometric median of places in few dimensions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_drag.tree import product

_NEWTON_STEPS = 60
_FLAT = 0.5  # gradients that are of rounding alone, in units of the precision
_SHORT = 4.0  # the same of steps


def median_of_places(
    places: Float[Array, "clients span"], mass: Float[Array, " clients"], smoothing: jax.Array
) -> tuple[Float[Array, " span"], Int[Array, ""]]:
    """The geometric median of ``places`` ``[S, n]``, around the origin and with distances of order 1.

    A primal-dual Newton method. Distances are rounded off to ``D_m = sqrt(max(nu, d_m)^2 + mu^2)`` while mu falls
    from 1. With ``r_m = z - x_m``, the unit vectors ``y_m = r_m / D_m`` are unknowns of their own, which takes
    the kinks out of the equations ``D_m y_m = r_m``, ``sum_m p_m y_m = 0``. Eliminating y leaves

        (sum_m p_m / D_m (I - sym(y_m r_m^T) / D_m)) step = -sum_m p_m r_m / D_m,

    where the term with y is absent within nu. With y = 0 this is Weiszfeld's step. Steps that would go too far are
    halved, but not where slopes are of rounding alone; where the objective is flat, as between two places in the middle
    of a line, no step is taken.

    Returns:
      The median, and the number of steps.
    """
    eps = jnp.finfo(places.dtype).eps

    def slope(z: jax.Array, rounding: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        r = z - places
        d = jnp.linalg.norm(r, axis=1)
        rounded = jnp.hypot(jnp.maximum(d, smoothing), rounding)
        return r, jnp.where(d > smoothing, 1 / rounded, 0.0), 1 / rounded, product(mass / rounded, r)

    def advance(now: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        z, y, rounding, _, count = now
        r, outside, near, gradient = slope(z, rounding)
        bend = product(((mass * near * outside)[:, None] * y).T, r)
        curvature = (product(mass, near) + 100 * eps) * jnp.eye(len(z), dtype=z.dtype) - (bend + bend.T) / 2
        step = -jnp.linalg.solve(curvature, gradient)
        steep = jnp.linalg.norm(gradient) > _FLAT * eps
        step = jnp.where(steep & jnp.isfinite(step).all(), step, 0.0)
        is_long = jnp.linalg.norm(step) > _SHORT * eps

        def beyond(part: jax.Array) -> jax.Array:
            ahead = slope(z + part * step, rounding)[-1]
            return is_long & (product(ahead, step) > 0.3 * jnp.abs(product(gradient, step))) & (part > 1e-3)

        part = jax.lax.while_loop(beyond, lambda part: part / 2, jnp.ones((), z.dtype))
        y = near[:, None] * (r + step) - y * (outside * near * product(r, step))[:, None]
        y = y / jnp.maximum(1.0, jnp.linalg.norm(y, axis=1, keepdims=True))
        lower = jnp.maximum(jnp.where(part > 0.9, 0.1 * rounding, rounding), eps)
        arrived = (rounding <= eps) & (jnp.linalg.norm(part * step) <= 0.01 * jnp.sqrt(eps))
        return z + part * step, y, lower, arrived, count + 1

    def unfinished(now: tuple[jax.Array, ...]) -> jax.Array:
        return ~now[3] & (now[4] < _NEWTON_STEPS)

    start = (jnp.zeros_like(places[0]), jnp.zeros_like(places), jnp.ones((), places.dtype))
    end = jax.lax.while_loop(unfinished, advance, (*start, jnp.zeros((), bool), jnp.zeros((), int)))
    return end[0], end[-1]
