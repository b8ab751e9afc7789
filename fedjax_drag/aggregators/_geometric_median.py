"""The geometric median of the deltas."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._screen import empty_metrics, screened
from fedjax_drag.aggregators._weiszfeld import weiszfeld
from fedjax_drag.types import Aggregator


class GeometricMedianState(NamedTuple):
    """State of :func:`geometric_median`: the metrics of the last round."""

    metrics: dict[str, jax.Array]


def geometric_median(smoothing: Any = 1e-6, tolerance: Any = 1e-5, max_iterations: int = 100) -> Aggregator:
    """Moves by the point with the smallest summed distance to the deltas.

    ``theta += argmin_z sum_m ||z - g_m||``, by the smoothed Weiszfeld iteration from the mean. Breakdown
    point 1/2.

    Args:
      smoothing: lower bound nu on a distance, > 0, in the units of the deltas.
      tolerance: stops after a step shorter than this share of the mean distance to the deltas, >= 0.
      max_iterations: bound on the number of steps, >= 1.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``weight`` (coefficient of ``g_m``), ``cosine`` to the
      median, ``iterations`` used, ``residual`` (relative length of the last step).

    Raises:
      ValueError: if an argument is out of range.

    References:
      Pillutla et al., Robust aggregation for federated learning, 2022, Algorithm 2. On deltas and on
      models the rule is the same, as all clients start from the same parameters. Other libraries take a
      fixed three steps from zero; this runs to convergence.
    """
    checks.positive("smoothing", smoothing)
    checks.in_range("tolerance", tolerance, 0.0)
    checks.count("max_iterations", max_iterations, 1)

    def init(params):
        del params
        return GeometricMedianState(empty_metrics(iterations=jnp.zeros((), int), residual=jnp.zeros(())))

    @screened
    def apply(params, deltas, state, *, valid, **_):
        del state
        found = weiszfeld(deltas, tree.uniform_weights(valid), smoothing, tolerance, max_iterations)
        metrics = {
            "weight": found.weight,
            "cosine": tree.cosines(deltas, found.point),
            "iterations": found.iterations,
            "residual": found.residual,
        }
        return tree.move(params, found.point), GeometricMedianState(metrics)

    return Aggregator(init, apply)
