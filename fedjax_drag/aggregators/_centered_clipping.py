"""Centered clipping: deltas clipped to a ball around the last aggregate."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.kernels.geometric_median import distances_to
from fedjax_drag.ops.rules import Moved, PlainAggregator
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.types import Deltas, Params, Scalar, State


class CenteredClippingState(NamedTuple):
    """State of :func:`centered_clipping`.

    Attributes:
      center: the last aggregate ``v``, like ``params``, in float32 at least; zero before the first round.
      metrics: of the last round.
    """

    center: Params
    metrics: dict[str, jax.Array]


class centered_clipping(PlainAggregator):
    """Moves by an aggregate ``v`` to which every client adds at most a step of length ``radius / S``.

    From the aggregate of the round before, or zero in the first, ``iterations`` times::

        v <- v + mean_m (g_m - v) min(1, radius / ||g_m - v||)
        theta += v

    Args:
      radius: ``tau``, the distance from ``v`` beyond which a delta is clipped, > 0, in the units of the deltas. A
        radius beyond all distances gives :func:`fedavg`.
      iterations: number of steps in a round, >= 1. More bring ``v`` nearer to the honest deltas where they have
        moved away from the last aggregate.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``scale`` (``min(1, radius / ||g_m - v||)`` in the last
      iteration), ``weight`` (the coefficient of ``g_m`` in the new ``v``; the rest, up to a sum of 1, is that of the
      old one), ``cosine`` to the new ``v``.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      bounded whoever is malicious: an iteration moves v by at most radius; over rounds the pull adds up

    Cost:
      2 passes over the deltas for each iteration, and 2

    References:
      Karimireddy et al., Learning from history for Byzantine robust optimization, 2021. Interpretation: the paper lets
      clients send momentum; here ``g_m`` are plain deltas, and the only state is ``v``.
    """

    radius: Scalar
    iterations: int = 1
    split = "clients"

    def check(self) -> None:
        checks.positive("radius", self.radius)
        checks.count("iterations", self.iterations, 1)

    def init(self, params: Params) -> CenteredClippingState:
        center = jax.tree.map(lambda p: tree.accurate(jnp.zeros_like(p)), params)
        return CenteredClippingState(center, empty_metrics("scale"))

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        share = tree.uniform_weights(valid)

        def iterate(before: tuple[Params, jax.Array, jax.Array], none: None) -> tuple[Any, None]:
            center, weight = before[:2]
            scale = jnp.where(valid, clip_scale(distances_to(center, deltas, share), self.radius), 0.0)
            pull = share * scale
            kept = 1 - pull.sum()
            center = jax.tree.map(lambda v, s: kept * v + s, center, tree.weighted_sum(pull, deltas))
            return (center, kept * weight + pull, scale), none

        nobody = jnp.zeros(share.shape, jnp.result_type(*jax.tree.leaves(state.center)))
        center, weight, scale = jax.lax.scan(iterate, (state.center, nobody, nobody), length=self.iterations)[0]
        metrics = {"weight": weight, "cosine": tree.cosines(deltas, center), "scale": scale}
        return tree.move(params, center), CenteredClippingState(center, metrics)
