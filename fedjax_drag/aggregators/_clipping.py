"""Static clipping: shortens long deltas before another rule."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.ops.rules import Moved, WrappingAggregator, wrapped
from fedjax_drag.types import Deltas, Params, Scalar, State
from fedjax_drag.types._part import undefined


class Clipped(WrappingAggregator):
    """A rule around another one that gets the deltas clipped to a :meth:`threshold`."""

    reports = ("scale",)

    def threshold(self, norm: Float[Array, " clients"], valid: Bool[Array, " clients"], **extras: Any) -> Any:
        """The length to which deltas of these lengths ``[S]`` are clipped, scalar."""
        raise undefined(self, "threshold")

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        norm = tree.norms(deltas)
        scale = jnp.where(valid, clip_scale(norm, self.threshold(norm, valid, **extras)), 0.0)
        clipped = clip(deltas, scale, valid)
        moved, inner = self.aggregator.apply(params, clipped, state.inner, valid=valid, **extras)
        update = tree.subtract(jax.tree.map(tree.accurate, moved), params)
        metrics = {"weight": scale * inner.metrics["weight"], "cosine": tree.cosines(deltas, update), "scale": scale}
        return moved, wrapped(inner, metrics)


class clipping(Clipped):
    """Replaces every delta by ``min(1, C / ||g_m||) g_m``, then applies another rule.

    Around :func:`fedavg` this is :func:`norm_clipping`, which also takes deltas in chunks.

    Args:
      aggregator: the rule that gets the clipped deltas; client m's is the m-th as before.
      max_norm: ``C``, the greatest length of a delta, > 0.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what ``aggregator`` needs. Metrics: ``scale``
      (``min(1, C / ||g_m||)``), ``weight`` (the wrapped rule's times ``scale``), ``cosine`` of the client's own delta
      to the update, and the wrapped rule's scalars. The gradient is the wrapped rule's, through the clipped deltas.

    Raises:
      ValueError: if ``max_norm`` is not positive.

    Breakdown point:
      that of the wrapped rule; around the mean, f clients shift the step by at most 2 f / S x max_norm

    Cost:
      that of the wrapped rule, and 4 passes; memory S x d

    References:
      Static clipping before a robust rule, as Allouah et al., Adaptive gradient clipping for robust federated learning,
      2025, compare it with :func:`arc`.
    """

    max_norm: Scalar

    def check(self) -> None:
        super().check()
        checks.positive("max_norm", self.max_norm)

    def threshold(self, norm: Float[Array, " clients"], valid: Bool[Array, " clients"], **extras: Any) -> Any:
        del norm, valid, extras
        return self.max_norm


def clip(deltas: Deltas, scale: Float[Array, " clients"], valid: Bool[Array, " clients"]) -> Deltas:
    """Each valid client's delta times its scale; 0 for the others, whatever they sent."""

    def scaled(leaf: jax.Array) -> jax.Array:
        present = tree.expand(valid, leaf)
        return tree.expand(scale, leaf) * tree.accurate(jnp.where(present, leaf, 0))

    return jax.tree.map(scaled, deltas)
