"""Metrics of predictions: what each example adds, and what the sums say.

The ``update`` of a metric, see :class:`fedjax_drag.types.Metric`, gives what each example adds to its sums; its
``result`` makes a number of the sums over all examples. So it is the same however they are divided into batches,
clients and devices; counts are integers and exact.

Outputs ``[B, ..., C]`` beside integer targets ``[B, ...]`` are logits of classes; outputs in the shape of the targets,
or with one more axis of length 1, are logits of labels that are true or not, or the predicted numbers themselves. An
example has one target or many (labels, tokens, pixels). A negative class does not count, nor does, where ``padding`` is
given, a target equal to it.
"""

# pyright: reportIncompatibleMethodOverride=false

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedjax_drag import checks
from fedjax_drag.losses import cross_entropy, like_targets
from fedjax_drag.types import Metric
from fedjax_drag.types._metric import Sums

Average = Literal["macro", "micro"]
_MOST_BINS_OF_CLIENTS = 64
__all__ = [
    "accuracy",
    "auc",
    "calibration_error",
    "f1",
    "mean_squared_error",
    "perplexity",
    "precision",
    "r2",
    "recall",
    "top_k_accuracy",
]


class _Mean(Metric):
    """A mean over targets: of each example the sum of its values, and the number of its targets, ``[B]`` each."""

    def result(self, sums: Sums) -> jax.Array:
        return sums[0] / sums[1]


class accuracy(_Mean):
    """Share of targets whose class is predicted, or of examples of which all labels are.

    Args:
      padding: targets that do not count.
    """

    is_share = True
    padding: int | None = None

    def update(self, outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> Sums:
        if _are_classes(outputs, targets):
            return _hits(outputs.argmax(-1) == targets, targets, self.padding)
        counted = jnp.ones(targets.shape, bool) if self.padding is None else targets != self.padding
        wrong = ((like_targets(outputs, targets) > 0) != (targets > 0)) & counted
        wrong, counted = (x.reshape(len(x), -1).any(-1) for x in (wrong, counted))
        return (counted & ~wrong).astype(jnp.int32), counted.astype(jnp.int32)


class top_k_accuracy(_Mean):
    """Share of targets whose class is among the k with the highest logits.

    Of equal logits the class with the lower number comes first.

    Args:
      k: at least 1.
      padding: targets that do not count.

    Raises:
      ValueError: if ``k`` is not positive.
    """

    is_share = True
    k: int = 5
    padding: int | None = None

    @property
    def name(self) -> str:
        return f"top_{self.k}_accuracy"

    def check(self) -> None:
        checks.count("k", self.k, 1)

    def update(self, outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> Sums:
        _must_be_classes(self.name, outputs, targets)
        _, highest = jax.lax.top_k(outputs, min(self.k, outputs.shape[-1]))
        return _hits((highest == targets[..., None]).any(-1), targets, self.padding)


class perplexity(Metric):
    """``exp`` of the mean cross-entropy of the targets, such as the next tokens.

    Args:
      padding: targets that do not count.
    """

    higher_is_better = False
    padding: int | None = None

    def update(self, outputs: Float[Array, "batch ... classes"], targets: Shaped[Array, "batch ..."]) -> Sums:
        _must_be_classes(self.name, outputs, targets)
        counted = _counted(targets, self.padding)
        loss = cross_entropy().of_labels(outputs, targets)
        return _of_example(jnp.where(counted, loss, 0.0)), _of_example(counted.astype(jnp.int32))

    def result(self, sums: Sums) -> jax.Array:
        return jnp.exp(sums[0] / sums[1])


class mean_squared_error(_Mean):
    """Mean of the squared error over all targets."""

    higher_is_better = False

    def update(self, outputs: Float[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> Sums:
        error = jnp.square(like_targets(outputs, targets) - targets)
        return _of_example(error), _of_example(jnp.ones(error.shape, jnp.int32))


class r2(Metric):
    """Coefficient of determination, ``1 - sum (t - o)^2 / sum (t - mean t)^2``; the mean over several targets.

    The targets' squares are summed as float32: where their mean is far from zero, the distance of the result from 1 has
    a relative error of about ``1e-7 mean^2 / variance``. Give ``center`` then.

    Args:
      center: subtracted from targets and outputs before; it does not change the result but for rounding.
    """

    center: float = 0.0

    def update(self, outputs: Float[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> Sums:
        target = (targets - self.center).reshape(len(targets), -1)
        error = like_targets(outputs, targets) - targets
        return jnp.ones(len(target), jnp.int32), target, target**2, jnp.square(error).reshape(target.shape)

    def result(self, sums: Sums) -> jax.Array:
        number, total, squares, errors = sums
        spread = squares - total**2 / number
        # Of one example, or of equal targets, what is left of the squares is rounding.
        return jnp.mean(jnp.where(spread > 1e-6 * squares, 1 - errors / spread, jnp.nan))


class auc(Metric):
    """Area under the receiver operating characteristic curve, of scores in bins.

    Scores are probabilities, of the softmax or the sigmoid, in bins of equal width; a pair in one bin counts half. The
    error is at most half the share of pairs (a positive and a negative example) that are in one bin, see
    :meth:`error_bound`. Of several classes it is the mean of each against the rest; of several labels, the mean over
    them. A class or label that all examples have, or none, makes it NaN.

    Args:
      bins: how many, at least 2. Clients are evaluated by it with at most 64 of them: each example adds ``2 C bins``
        numbers, all of which are kept until they are added up by client. A client without an example of a class, or of
        all others, has no value.

    Raises:
      ValueError: if ``bins`` is less than 2.

    References:
      Hanley and McNeil, The meaning and use of the area under a receiver operating characteristic curve, Radiology 143,
      1982: the area is the share of pairs in the right order.
    """

    is_share = True
    bins: int = 1000

    @property
    def of_clients(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.bins <= _MOST_BINS_OF_CLIENTS

    def check(self) -> None:
        checks.count("bins", self.bins, 2)

    def update(self, outputs: Float[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> Sums:
        if is_classes := _are_classes(outputs, targets):
            score, positive = jax.nn.softmax(outputs), targets[..., None] == jnp.arange(outputs.shape[-1])
        else:
            score, positive = jax.nn.sigmoid(like_targets(outputs, targets)), targets > 0
        columns = outputs.shape[-1] if is_classes else positive[0].size
        score, positive = (x.reshape(len(x), -1, columns) for x in (score, positive))
        counted = (targets >= 0).reshape(len(score), -1, 1) if is_classes else jnp.ones((), bool)
        place = jnp.minimum(jnp.floor(score * self.bins), self.bins - 1).astype(jnp.int32)
        at = (jnp.arange(len(score))[:, None, None], 1 - positive.astype(jnp.int32), jnp.arange(columns), place)
        zeros = jnp.zeros((len(score), 2, columns, self.bins), jnp.int32)
        return zeros.at[at].add(jnp.broadcast_to(counted, place.shape).astype(zeros.dtype))

    def result(self, sums: Sums) -> jax.Array:
        positive, negative = sums.astype(jnp.float32)
        below = jnp.cumsum(negative, -1) - negative
        return jnp.mean((positive * (below + negative / 2)).sum(-1) / (positive.sum(-1) * negative.sum(-1)))

    def error_bound(self, sums: Sums) -> jax.Array:
        """By how much the result can differ from that without bins, at most."""
        positive, negative = sums.astype(jnp.float32)
        return jnp.mean((positive * negative).sum(-1) / 2 / (positive.sum(-1) * negative.sum(-1)))


class _OfPredictions(Metric):
    """What is made of the right, the predicted and the actual targets of each class or label, ``[B, C]`` int32 each.

    Args:
      average: ``"macro"``, the mean over the classes that are predicted or actual at least once; ``"micro"``, of the
        sums over all classes.

    Raises:
      ValueError: if ``average`` is something else.
    """

    is_share = True
    average: Average = "macro"

    @property
    def name(self) -> str:
        return type(self).__name__ + ("" if self.average == "macro" else f"_{self.average}")

    def check(self) -> None:
        checks.one_of("average", self.average, ("macro", "micro"))

    def update(self, outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> Sums:
        if _are_classes(outputs, targets):
            classes = jnp.arange(outputs.shape[-1])
            predicted, actual = outputs.argmax(-1)[..., None] == classes, targets[..., None] == classes
            predicted &= (targets >= 0)[..., None]
            predicted, actual = (x.reshape(len(x), -1, len(classes)).astype(jnp.int32) for x in (predicted, actual))
            return tuple(x.sum(1) for x in (predicted * actual, predicted, actual))
        labels = like_targets(outputs, targets) > 0, targets > 0
        predicted, actual = (x.reshape(len(x), -1).astype(jnp.int32) for x in labels)
        return predicted * actual, predicted, actual

    def result(self, sums: Sums) -> jax.Array:
        right, predicted, actual = (x.sum(keepdims=True) for x in sums) if self.average == "micro" else sums
        values = self.of_class(right, predicted, actual)
        return jnp.mean(values, where=(predicted + actual) > 0)

    def of_class(self, right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
        """The value for each class, ``[C]``."""
        raise NotImplementedError(f"{self.name}: must define of_class")


class precision(_OfPredictions):
    """Share of the predicted targets that are right; 0 for a class that is never predicted."""

    def of_class(self, right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
        return right / jnp.maximum(predicted, 1)


class recall(_OfPredictions):
    """Share of the actual targets that are predicted; 0 for a class that is predicted and never actual."""

    def of_class(self, right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
        return right / jnp.maximum(actual, 1)


class f1(_OfPredictions):
    """Harmonic mean of precision and recall, of each class or of all."""

    def of_class(self, right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
        return 2 * right / jnp.maximum(predicted + actual, 1)


class calibration_error(Metric):
    """Expected calibration error: by how much the confidence of predictions differs from their accuracy.

    Predictions are put into bins by the highest probability, and the distances between the bins' mean probability and
    their share of right predictions are averaged, weighted by how many are in each.

    Args:
      bins: how many of equal width, at least 1.

    Raises:
      ValueError: if ``bins`` is not positive.

    References:
      Guo, Pleiss, Sun and Weinberger, On calibration of modern neural networks, ICML 2017, Equation 3.
    """

    higher_is_better = False
    is_share = True
    bins: int = 15

    def check(self) -> None:
        checks.count("bins", self.bins, 1)

    def update(self, outputs: Float[Array, "batch classes"], targets: Shaped[Array, " batch"]) -> Sums:
        _must_be_classes(self.name, outputs, targets)
        confidence = jax.nn.softmax(outputs).max(-1)
        right = outputs.argmax(-1) == targets
        place = jnp.ceil(confidence * self.bins).astype(jnp.int32) - 1  # a bin has its upper end
        at = jax.nn.one_hot(jnp.clip(place, 0, self.bins - 1), self.bins) * (targets >= 0)[..., None]
        return tuple(_of_example(x[..., None] * at, self.bins) for x in (confidence, right, jnp.ones_like(confidence)))

    def result(self, sums: Sums) -> jax.Array:
        confidence, right, number = sums
        return jnp.abs(confidence - right).sum() / number.sum()


def _are_classes(outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> bool:
    """Whether outputs are the logits of classes, of which a target is one."""
    is_one = outputs.shape[-1] == 1 or jnp.issubdtype(targets.dtype, jnp.floating)
    return outputs.shape[:-1] == targets.shape and not is_one


def _must_be_classes(metric: str, outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> None:
    if not _are_classes(outputs, targets):
        shapes = f"outputs {outputs.shape} beside {targets.dtype} targets {targets.shape}"
        raise ValueError(f"{metric}: {shapes}; must be [B, ..., C] beside integers [B, ...]")


def _counted(classes: jax.Array, padding: int | None) -> jax.Array:
    return (classes >= 0) if padding is None else (classes >= 0) & (classes != padding)


def _hits(right: jax.Array, targets: jax.Array, padding: int | None) -> tuple[jax.Array, jax.Array]:
    """How many targets of each example are right, and how many there are, ``[B]`` int32 each."""
    counted = _counted(targets, padding)
    return _of_example((right & counted).astype(jnp.int32)), _of_example(counted.astype(jnp.int32))


def _of_example(values: jax.Array, *shape: int) -> jax.Array:
    """The sums over each example's targets, ``[B, *shape]``."""
    return values.reshape(len(values), -1, *shape).sum(1)
