"""Losses that clients minimise: of a model's outputs and the targets, one number for each example.

An example has one target or many, such as the tokens of a text or the pixels of a mask. Its loss is the mean over them,
so that every example weighs the same; a loss that weighs examples by what they hold says so by its ``weights``.
"""

# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Shaped

from fedjax_drag import checks
from fedjax_drag.types import Loss, Scalar

__all__ = ["binary_cross_entropy", "cross_entropy", "huber", "mse", "token_cross_entropy"]

LossFunction = Callable[[Any, Any], jax.Array]
"""``(outputs [B, ...], targets [B, ...]) -> [B]``, a loss for each example, differentiable in the outputs; both are
arrays, or pytrees of arrays."""


class cross_entropy(Loss):
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

    def __call__(
        self, logits: Float[Array, "batch ... classes"], labels: Int[Array, "batch ..."]
    ) -> Float[Array, " batch"]:
        """``(logits [B, ..., C], labels [B, ...]) -> [B]``, such as of one label an example or one a pixel.

        Of several labels it is the mean over those that are not negative, 0 where there is none. Any other label must
        be in ``[0, C)``, which data sets with ``num_classes`` see to: one that is not counts as the likeliest class.
        """
        losses = self.of_labels(logits, labels)
        return losses if losses.ndim == 1 else _mean_of_counted(losses, labels >= 0)

    def of_labels(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """``(logits [..., C], labels [...]) -> [...]``, the loss of each label."""
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise ValueError(f"labels: of type {labels.dtype}; must be integers, the numbers of classes")
        if logits.shape[:-1] != labels.shape:
            raise ValueError(f"labels: shape {labels.shape}; must be {logits.shape[:-1]}, one for logits [C]")
        shifted = logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))
        chosen = jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) == labels[..., None], shifted, 0.0), -1)
        smoothed = self.label_smoothing * (shifted.mean(-1) - chosen)
        # Without smoothing a class that is masked by a logit of -inf counts nothing, where 0 times -inf would be NaN.
        chosen = chosen + jnp.where(self.label_smoothing > 0, smoothed, 0.0)
        return jnp.log(jnp.exp(shifted).sum(-1)) - chosen


class token_cross_entropy(cross_entropy):
    """Softmax cross-entropy in nats of the tokens of texts of different lengths.

    The mean over examples is the mean over their tokens: an example weighs as many as it has. Padding counts nothing,
    however much there is.

    Args:
      padding: the target where there is no token.
      label_smoothing: as for :class:`cross_entropy`.

    Raises:
      ValueError: if ``label_smoothing`` is out of range.
    """

    label_smoothing: Scalar = 0.0
    padding: int = -1

    def __call__(self, logits: Float[Array, "batch tokens classes"], labels: Int[Array, "batch tokens"]) -> jax.Array:
        """``(logits [B, L, C], labels [B, L]) -> [B]``, the mean over the tokens of each text, 0 where it has none."""
        return _mean_of_counted(self.of_labels(logits, labels), labels != self.padding)

    def weights(self, targets: Int[Array, "batch tokens"]) -> Float[Array, " batch"]:
        """How many tokens each example has, ``[B]``."""
        return jnp.sum(targets != self.padding, axis=tuple(range(1, targets.ndim)), dtype=jnp.float32)


class binary_cross_entropy(Loss):
    """Cross-entropy in nats of the sigmoid of logits with targets in [0, 1], such as several labels an example."""

    def __call__(
        self, logits: Float[Array, "batch ..."], targets: Shaped[Array, "batch ..."]
    ) -> Float[Array, " batch"]:
        """``(logits [B, ...], targets [B, ...]) -> [B]``, the mean over an example's labels."""
        logits = like_targets(logits, targets)
        return _mean_of_example(optax.losses.sigmoid_binary_cross_entropy(logits, targets.astype(logits.dtype)))


class mse(Loss):
    """Squared error."""

    def __call__(
        self, outputs: Float[Array, "batch ..."], targets: Shaped[Array, "batch ..."]
    ) -> Float[Array, " batch"]:
        """``(outputs [B, ...], targets [B, ...]) -> [B]``, the mean over an example's targets."""
        return _mean_of_example(jnp.square(like_targets(outputs, targets) - targets))


class huber(Loss):
    """Huber's loss: ``e^2 / 2`` of an error of at most ``delta``, ``delta (|e| - delta / 2)`` of a larger one.

    Args:
      delta: positive.

    Raises:
      ValueError: if ``delta`` is not positive.

    References:
      Huber, Robust estimation of a location parameter, Annals of Mathematical Statistics 35, 1964.
    """

    delta: Scalar = 1.0

    def check(self) -> None:
        checks.positive("delta", self.delta)

    def __call__(
        self, outputs: Float[Array, "batch ..."], targets: Shaped[Array, "batch ..."]
    ) -> Float[Array, " batch"]:
        """``(outputs [B, ...], targets [B, ...]) -> [B]``, the mean over an example's targets."""
        return _mean_of_example(optax.losses.huber_loss(like_targets(outputs, targets), targets, delta=self.delta))


def like_targets(outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> jax.Array:
    """Outputs in the shape of the targets, of which a last axis of length 1 is left out: ``[B, 1]`` of ``[B]``.

    Raises:
      ValueError: the shapes are not equal and do not differ by that axis.
    """
    if outputs.shape not in (targets.shape, (*targets.shape, 1)):
        raise ValueError(f"outputs: shape {outputs.shape}; must be {targets.shape} as of the targets")
    return outputs.reshape(targets.shape)


def _mean_of_counted(losses: jax.Array, counted: jax.Array) -> Float[Array, " batch"]:
    """The mean of each example's losses that count, ``[B, ...]`` to ``[B]``; 0 where there is none."""
    losses, counted = (x.reshape(len(x), -1) for x in (losses, counted))
    return jnp.where(counted, losses, 0.0).sum(1) / jnp.maximum(counted.sum(1, dtype=jnp.float32), 1)


def _mean_of_example(loss: jax.Array) -> jax.Array:
    return loss if loss.ndim == 1 else loss.reshape(len(loss), -1).mean(-1)
