"""Static clipping: shortens long deltas before another rule."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, kinds, tree
from fedjax_drag.aggregators._nnm import passed_on
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.naming import named
from fedjax_drag.ops.screening import empty_metrics, screened
from fedjax_drag.types import Aggregator, Deltas, Params, State


class ClippingState(NamedTuple):
    """State of :func:`clipping` and :func:`arc`.

    Attributes:
      inner: state of the wrapped rule, without its metrics.
      metrics: of the last round.
    """

    inner: Any
    metrics: dict[str, jax.Array]


def clipping(aggregator: Aggregator, max_norm: Any) -> Aggregator:
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
    checks.positive("max_norm", max_norm)

    def threshold(norm: jax.Array, valid: jax.Array, **_: Any) -> Any:
        del norm, valid
        return max_norm

    return named("clipping", clipped_rule(aggregator, threshold))


def clipped_rule(
    aggregator: Aggregator, threshold: Callable[..., Any], needs: frozenset[str] = frozenset()
) -> Aggregator:
    """A rule around another one that gets the deltas clipped to ``threshold(norm [S], valid [S], **extras)``."""
    kinds.AGGREGATOR.check("aggregator", aggregator)

    def init(params: Params) -> ClippingState:
        inner = aggregator.init(params)
        return ClippingState(inner._replace(metrics={}), empty_metrics("scale", **passed_on(inner)))

    @screened
    def apply(
        params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any
    ) -> tuple[Params, ClippingState]:
        norm = tree.norms(deltas)
        scale = jnp.where(valid, clip_scale(norm, threshold(norm, valid, **extras)), 0.0)
        clipped = clip(deltas, scale, valid)
        moved, inner = aggregator.apply(params, clipped, state.inner, valid=valid, **extras)
        update = tree.subtract(jax.tree.map(tree.accurate, moved), params)
        metrics = {"weight": scale * inner.metrics["weight"], "cosine": tree.cosines(deltas, update), "scale": scale}
        return moved, ClippingState(inner._replace(metrics={}), metrics | passed_on(inner))

    return Aggregator(init, apply, aggregator.needs | needs, aggregator.split, num_clients=aggregator.num_clients)


def clip(deltas: Deltas, scale: Float[Array, " clients"], valid: Bool[Array, " clients"]) -> Deltas:
    """Each valid client's delta times its scale; 0 for the others, whatever they sent."""

    def scaled(leaf: jax.Array) -> jax.Array:
        present = tree.expand(valid, leaf)
        return tree.expand(scale, leaf) * tree.accurate(jnp.where(present, leaf, 0))

    return jax.tree.map(scaled, deltas)
