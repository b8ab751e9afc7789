"""AutoGM: a geometric median that chooses its own weights."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._geometric_median import median_metrics
from fedjax_drag.kernels.geometric_median import (
    Median,
    before,
    closest_to_zero,
    converge,
    converge_in,
    distances_to,
    in_accuracy_of,
    pull,
    root,
)
from fedjax_drag.kernels.span import span_around
from fedjax_drag.ops.rules import Moved, PlainAggregator
from fedjax_drag.ops.screening import MetricsOnly, stateless
from fedjax_drag.types import Deltas, Params, Scalar, State

_MEDIAN_ITERATIONS = 100


class _Alternation(NamedTuple):
    median: Median
    mass: jax.Array
    changed: jax.Array
    iterations: jax.Array
    sure: jax.Array


def fill(distance: Float[Array, " clients"], valid: Bool[Array, " clients"], lam: Any) -> Float[Array, " clients"]:
    """``argmin sum_m alpha_m d_m + lam / 2 ||alpha||^2`` over the simplex of the valid clients, ``[S]``, exactly.

    ``alpha_m = max(0, level - d_m) / lam``: water of volume ``lam`` poured over grounds of heights ``d_m``.
    """
    # Heights above the lowest, in units of lam: tiny or huge values of lam lose nothing.
    height = (distance - jnp.where(valid, distance, jnp.inf).min()) / lam
    height = jnp.where(valid, height, jnp.inf)
    ground = jnp.sort(jax.lax.stop_gradient(height))
    # The k lowest are under water if they can be filled to the height of the k-th with what there is.
    volume = jnp.arange(1, len(ground) + 1) * ground - jnp.cumsum(ground)
    rank = jnp.argsort(jnp.argsort(jax.lax.stop_gradient(height)))
    wet = valid & (rank < jnp.sum(volume < 1))
    height = jnp.where(wet, height, 0.0)
    level = (1 + height.sum()) / jnp.maximum(wet.sum(), 1)
    alpha = jnp.where(wet, jnp.maximum(level - height, 0.0), 0.0)
    return alpha * tree.inverse(alpha.sum())


def _first(start: Any, equal: jax.Array) -> _Alternation:
    """Before the first turn: a point to start from, and equal weights."""
    none, infinite = jnp.zeros((), int), jnp.full((), jnp.inf, equal.dtype)
    return _Alternation(Median(start, equal, none, infinite), equal, infinite, none, jnp.ones((), bool))


def _equation(point: Params, deltas: Deltas, valid: jax.Array, lam: Any, smoothing: Any) -> Params:
    """``sum_m w_m (z - g_m)`` with the weights that belong to z: 0 at the result."""
    distance = distances_to(point, deltas, valid)
    return pull(point, deltas, fill(distance, valid > 0, lam), smoothing)


class autogm(PlainAggregator):
    """Moves by a geometric median whose weights lean towards the deltas that are close to it.

    ``min over z and alpha of sum_m alpha_m ||z - g_m|| + lam / 2 ||alpha||^2`` with alpha in the simplex, by turns,
    from equal weights: z is the weighted geometric median; ``alpha_m = max(0, eta - ||z - g_m||) / lam``, with eta
    such that they sum to 1, so that deltas farther away than eta are left out.

    Args:
      lam: lambda > 0, in the units of the deltas: the larger, the more equal the weights. Default: the number of
        clients.
      smoothing: lower bound nu on a distance, > 0, in the units of the deltas.
      tolerance: stops when no weight changes by more than this share of an equal one, >= 0; also that of the medians.
      max_iterations: bound on the number of turns, >= 1.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``alpha``, ``weight`` (coefficient of ``g_m``, proportional
      to ``alpha_m / ||z - g_m||``), ``cosine`` to the result, ``iterations`` (turns), ``residual`` (largest change of
      a weight in the last turn, times the number of clients). The gradient is that of the stationary point.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      1/2 with large lam; with small lam, it settles on a cluster near the median

    Cost:
      that of geometric_median, in hard cases for each turn

    References:
      Li, Ngai and Voigt, Byzantine-robust aggregation in federated learning empowered industrial IoT, 2021.
    """

    lam: Scalar | None = None
    smoothing: Scalar = 1e-06
    tolerance: Scalar = 1e-05
    max_iterations: int = 100

    def init(self, params: Params) -> State:
        return stateless("alpha", iterations=0, residual=0.0)(params)

    def check(self) -> None:
        if self.lam is not None:
            checks.positive("lam", self.lam)
        checks.positive("smoothing", self.smoothing)
        checks.in_range("tolerance", self.tolerance, 0.0)
        checks.count("max_iterations", self.max_iterations, 1)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        del state
        equal, present, count, nu = in_accuracy_of(
            deltas, tree.uniform_weights(valid), valid, valid.sum(), self.smoothing
        )
        (strength,) = in_accuracy_of(deltas, jnp.maximum(count, 1) if self.lam is None else self.lam)

        known, fixed, volume = jax.lax.stop_gradient((deltas, nu, strength))
        span = span_around(known, closest_to_zero(known, equal, fixed))

        def weighed(now: _Alternation, median: Median, distance: jax.Array, sure: Any) -> _Alternation:
            mass = fill(distance, valid, volume)
            return _Alternation(median, mass, count * jnp.abs(mass - now.mass).max(), now.iterations + 1, sure)

        def turn_in_span(now: _Alternation) -> _Alternation:
            near, _ = converge_in(span, now.mass, fixed, self.tolerance, _MEDIAN_ITERATIONS, now.median.point)
            after = weighed(now, near.median, span.distances(near.median.point), now.sure)
            return tree.where(near.settled, after, now._replace(sure=jnp.zeros((), bool)))

        def turn(now: _Alternation) -> _Alternation:
            start = before(now.median.point, now.mass)
            median = converge(known, now.mass, fixed, self.tolerance, _MEDIAN_ITERATIONS, start)
            return weighed(now, median, distances_to(median.point, known, present), now.sure)

        def unfinished(now: _Alternation) -> jax.Array:
            return now.sure & (now.changed > self.tolerance) & (now.iterations < self.max_iterations)

        near = jax.lax.while_loop(unfinished, turn_in_span, _first(equal, equal))

        reached = near._replace(median=near.median._replace(point=tree.weighted_sum(near.median.point, known)))

        def onward() -> _Alternation:  # with differences of the deltas, where inner products lose digits
            return jax.lax.while_loop(unfinished, turn, reached._replace(sure=~near.sure))

        last = jax.lax.cond(near.sure, lambda: reached, onward)
        point = root(_equation, last.median.point, deltas, present, strength, nu)
        median = Median(point, last.median.weight, last.iterations, last.changed)
        return tree.move(params, point), MetricsOnly({**median_metrics(median, deltas), "alpha": last.mass})
