"""A model as pure functions: what a run trains, whatever the user has written it in."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag.simulation.model.trainable import Trainable, joined, split
from fedjax_drag.types import Batch, Params, Part
from fedjax_drag.types._part import CallablePart

Statistics = Any
"""What the forward pass in training changes beside the parameters, such as BatchNorm's running statistics: a mapping of
Flax's collections; an empty one where a model has none."""

NO_STATISTICS: Statistics = {}

Streams = Mapping[str, PRNGKeyArray]
"""A random key by the name of its stream, such as ``dropout``."""

NO_STREAMS: Streams = {}


@runtime_checkable
class Form(Protocol):
    """A user's model as pure functions of all its parameters; hashable, and equal to another of equal functions."""

    @property
    def name(self) -> str:
        """What a message begins with."""
        ...

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the random streams of the forward pass in training."""
        ...

    def init(self, key: PRNGKeyArray) -> tuple[Params, Statistics]:
        """Parameters and statistics."""
        ...

    def evaluate(self, params: Params, statistics: Statistics, x: jax.Array) -> Any:
        """Logits ``[B, C]``, without random numbers."""
        ...

    def train(
        self, params: Params, statistics: Statistics, x: jax.Array, rngs: Streams, real: jax.Array | None
    ) -> tuple[Any, Statistics]:
        """Logits ``[B, C]`` in training and the statistics after the batch; ``real`` marks what is no padding."""
        ...


class ModelState(NamedTuple):
    """What a model has beside the parameters that are trained.

    Attributes:
      frozen: the parameters that are not trained, like those of the model with None in the place of the trained ones;
        ``()`` where all are trained.
      statistics: see :data:`Statistics`.
    """

    frozen: Any = ()
    statistics: Statistics = NO_STATISTICS


class Model(Part):
    """What a run trains: a user's model with the loss it is trained on. Two are equal if all of this is.

    Attributes:
      form: the user's model as pure functions, whatever it is written in.
      loss: ``(logits [B, C], labels [B]) -> [B]``.
      preprocess: from stored examples to model inputs.
      num_classes: C.
      trainable: which parameters are trained; None for all.
      compute_dtype: of the forward and backward pass; parameters, statistics and logits stay as they are.
    """

    form: Form
    loss: CallablePart
    preprocess: Callable[[jax.Array], jax.Array]
    num_classes: int
    trainable: Trainable | None = None
    compute_dtype: str = "float32"

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the random streams of the forward pass in training."""
        return self.form.streams

    def init(self, key: PRNGKeyArray) -> tuple[Params, ModelState]:
        """Trained parameters, and what the model has beside them, as ``key`` draws them."""
        params, statistics = self.form.init(key)
        if self.trainable is None:
            return params, ModelState((), statistics)
        trained, frozen = split(params, self.trainable)
        return trained, ModelState(frozen, statistics)

    def apply(self, params: Params, state: ModelState, x: jax.Array) -> Any:
        """Logits ``[B, C]`` of inputs in evaluation."""
        everything = self._narrow(joined(params, state.frozen))
        return self._wide(self.form.evaluate(everything, state.statistics, self._narrow(x)))

    def train(
        self, params: Params, state: ModelState, x: jax.Array, rngs: Streams, real: jax.Array | None
    ) -> tuple[Any, Statistics]:
        """The forward pass in training.

        Args:
          params: the trained parameters.
          state: of the model.
          x: inputs ``[B, ...]``.
          rngs: a key for each stream of the model.
          real: ``[B]`` bool, the examples that are not padding; None if all are real.

        Returns:
          Logits ``[B, C]``, and the statistics after the batch.
        """
        everything = self._narrow(joined(params, state.frozen))
        logits, statistics = self.form.train(everything, state.statistics, self._narrow(x), rngs, real)
        return self._wide(logits), statistics

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

    def _narrow(self, arrays: Any) -> Any:
        """Floating arrays in the dtype of the computation."""
        if self.compute_dtype == "float32":
            return arrays
        is_floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
        return jax.tree.map(lambda x: x.astype(self.compute_dtype) if is_floating(x) else x, arrays)

    def _wide(self, logits: Any) -> Any:
        return logits if self.compute_dtype == "float32" else logits.astype(jnp.float32)
