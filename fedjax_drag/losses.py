"""Losses that clients minimise: functions of logits and integer labels."""

# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_drag import checks
from fedjax_drag.types import Scalar
from fedjax_drag.types._part import CallablePart

Loss = Callable[[jax.Array, jax.Array], jax.Array]
"""``(logits [B, C], labels [B]) -> [B]``, a loss for each example, differentiable in the logits."""

__all__ = ["cross_entropy"]


class cross_entropy(CallablePart):
    """Softmax cross-entropy in nats, with optional label smoothing.

    With ``label_smoothing`` e the target is ``1 - e + e / C`` for the label and ``e / C`` for every other class.

    Args:
      label_smoothing: e, in [0, 1].

    Raises:
      ValueError: if ``label_smoothing`` is out of range.

    References:
      Szegedy et al., Rethinking the Inception architecture for computer vision, CVPR 2016, Section 7 (smoothing).
    """

    label_smoothing: Scalar = 0.0

    def check(self) -> None:
        checks.in_range("label_smoothing", self.label_smoothing, 0.0, 1.0)

    def __call__(self, logits: Float[Array, "batch classes"], labels: Int[Array, " batch"]) -> Float[Array, " batch"]:
        """``(logits [B, C], labels [B]) -> [B]``."""
        shifted = logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))
        chosen = jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) == labels[:, None], shifted, 0.0), -1)
        smoothed = self.label_smoothing * (shifted.mean(-1) - chosen)
        # Without smoothing a class that is masked by a logit of -inf counts nothing, where 0 times -inf would be NaN.
        chosen = chosen + jnp.where(self.label_smoothing > 0, smoothed, 0.0)
        return jnp.log(jnp.exp(shifted).sum(-1)) - chosen
