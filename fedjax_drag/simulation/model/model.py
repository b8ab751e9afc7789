"""A model as pure functions: what a run trains, whatever the user has written it in."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag.losses import Loss
from fedjax_drag.types import Batch, Params

Statistics = Any
"""What the forward pass in training changes beside the parameters, such as BatchNorm's running statistics: a mapping of
Flax's collections; an empty one where a model has none."""

NO_STATISTICS: Statistics = {}

Streams = Mapping[str, PRNGKeyArray]
"""A random key by the name of its stream, such as ``dropout``."""

NO_STREAMS: Streams = {}


class ModelState(NamedTuple):
    """What a model has beside the parameters that are trained.

    Attributes:
      frozen: the parameters that are not trained, like those of the model with None in the place of the trained ones;
        ``()`` where all are trained.
      statistics: see :data:`Statistics`.
    """

    frozen: Any = ()
    statistics: Statistics = NO_STATISTICS


@runtime_checkable
class TrainFn(Protocol):
    """The forward pass in training."""

    def __call__(
        self, params: Params, state: ModelState, x: jax.Array, rngs: Streams, real: jax.Array | None, /
    ) -> tuple[jax.Array, Statistics]:
        """Computes logits.

        Args:
          params: the trained parameters.
          state: of the model.
          x: inputs ``[B, ...]``.
          rngs: a key for each stream of the model.
          real: ``[B]`` bool, the examples that are not padding; None if all are real.

        Returns:
          Logits ``[B, C]``, and the statistics after the batch.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as pure functions, with the loss it is trained on.

    Attributes:
      init: ``(key) -> (params, state)``.
      apply: ``(params, state, x) -> logits [B, C]``, in evaluation.
      train: the forward pass in training, see :class:`TrainFn`.
      loss: ``(logits [B, C], labels [B]) -> [B]``.
      preprocess: from stored examples to model inputs.
      num_classes: C.
      streams: names of the random streams of the forward pass in training.
    """

    init: Callable[[PRNGKeyArray], tuple[Params, ModelState]]
    apply: Callable[[Params, ModelState, jax.Array], jax.Array]
    train: TrainFn
    loss: Loss
    preprocess: Callable[[jax.Array], jax.Array]
    num_classes: int
    streams: tuple[str, ...] = ()

    def training_loss(
        self, state: ModelState, params: Params, statistics: Statistics, batch: Batch, rngs: Streams
    ) -> tuple[Float[Array, ""], Statistics]:
        """The mean loss of a batch's real examples in training, and the statistics after it.

        Args:
          state: of the model; its statistics are not read.
          params: the trained parameters.
          statistics: before the batch.
          batch: the examples.
          rngs: a key for each stream.
        """
        logits, after = self.train(params, state._replace(statistics=statistics), batch.x, rngs, batch.real)
        losses = self.loss(logits, batch.y)
        if batch.real is None:
            return losses.mean(), after
        return jnp.where(batch.real, losses, 0.0).sum() / jnp.maximum(batch.real.sum(), 1), after
