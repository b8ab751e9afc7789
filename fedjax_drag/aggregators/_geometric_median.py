"""The geometric median of the deltas."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import checks, tree
from fedjax_drag.kernels.geometric_median import Median, geometric_median_of
from fedjax_drag.ops.rules import Moved, PlainAggregator
from fedjax_drag.ops.screening import MetricsOnly, stateless
from fedjax_drag.types import Deltas, Params, Scalar, State


def median_metrics(median: Median, deltas: Deltas) -> dict[str, jax.Array]:
    """The metrics of a geometric median."""
    cosine = tree.cosines(deltas, median.point)
    return {"weight": median.weight, "cosine": cosine, "iterations": median.iterations, "residual": median.residual}


def masses(weighting: str) -> tuple[Callable[..., jax.Array], frozenset[str]]:
    """``(valid, **extras) -> p_m`` ``[S]`` for a way of weighting clients, and the extras that it needs.

    Raises:
      ValueError: if ``weighting`` is unknown.
    """
    checks.one_of("weighting", weighting, ("uniform", "examples"))

    def by_examples(valid: jax.Array, *, num_examples: jax.Array, **_: Any) -> jax.Array:
        sizes = valid * tree.accurate(num_examples)
        # If no client has examples, all have the same weight.
        return jnp.where(sizes.sum() > 0, sizes * tree.inverse(sizes.sum()), tree.uniform_weights(valid))

    def uniform(valid: jax.Array, **_: Any) -> jax.Array:
        return tree.uniform_weights(valid)

    return (by_examples, frozenset({"num_examples"})) if weighting == "examples" else (uniform, frozenset())


def check_solver(smoothing: Any, tolerance: Any, max_iterations: int) -> None:
    """Raises ValueError unless the arguments of a solver are in range."""
    checks.positive("smoothing", smoothing)
    checks.in_range("tolerance", tolerance, 0.0)
    checks.count("max_iterations", max_iterations, 1)


class MedianAggregator(PlainAggregator):
    """The rule ``theta += z`` for the geometric median z that :meth:`solve` computes.

    Attributes:
      smoothing: > 0, of the lengths.
      tolerance: >= 0, of the last change.
      max_iterations: >= 1.
    """

    smoothing: Scalar = 1e-6
    tolerance: Scalar = 1e-5
    max_iterations: int = 100

    weighting = "uniform"  # or a field

    def check(self) -> None:
        check_solver(self.smoothing, self.tolerance, self.max_iterations)
        masses(self.weighting)

    @property
    def needs(self) -> frozenset[str]:
        return masses(self.weighting)[1]

    @property
    def requires(self) -> frozenset[str]:
        return self.needs

    def init(self, params: Params) -> MetricsOnly:
        return stateless(iterations=0, residual=0.0)(params)

    def solve(self, deltas: Deltas, mass: Float[Array, " clients"]) -> Median:
        """The median of deltas of these weights ``[S]``, to the tolerance."""
        return geometric_median_of(deltas, mass, self.smoothing, self.tolerance, self.max_iterations)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        weigh, _ = masses(self.weighting)
        median = self.solve(deltas, weigh(valid, **extras))
        return tree.move(params, median.point), MetricsOnly(median_metrics(median, deltas))


class geometric_median(MedianAggregator):
    """Moves by the point with the smallest summed distance to the deltas.

    ``theta += argmin_z sum_m h(||z - g_m||)``, where ``h(d) = d`` down to ``nu`` and a parabola below: by Weiszfeld's
    iteration from the mean while it is fast, and otherwise by Newton's method, both in the span of the deltas. It
    also converges where many deltas coincide, or one is nearly the median.

    Args:
      smoothing: lower bound nu on a distance, > 0, in the units of the deltas.
      tolerance: how far the result may be from the median, as a share of the median distance to the deltas, >= 0.
        With 0, as near as the arithmetic allows.
      max_iterations: bound on the number of iterations, >= 1.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``weight`` (coefficient of ``g_m``), ``cosine`` to the
      median, ``iterations`` (steps of Weiszfeld and rounds of Newton's method), ``residual`` (what the tolerance
      bounds, as estimated from the last iteration). The median's gradient is that of the minimiser.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      1/2

    Cost:
      a Gram product (S^2 d operations) and 4 passes over the deltas, in hard cases 2 passes an iteration more

    References:
      Weiszfeld and Plastria, On the point for which the sum of the distances to n given points is minimum,
      2009; Pillutla et al., Robust aggregation for federated learning, 2022, for the smoothing. Other libraries take a
      fixed three steps from zero; this runs to convergence.
    """
