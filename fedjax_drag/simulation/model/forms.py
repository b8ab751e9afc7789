"""From a user's model in any of its forms to the model that a run trains."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from fedjax_drag.losses import Loss
from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model import trainable as paths
from fedjax_drag.simulation.model.functions import ModelFunctions, is_pair
from fedjax_drag.simulation.model.linen import functions_of_linen
from fedjax_drag.simulation.model.model import Model, ModelState, Statistics, Streams
from fedjax_drag.simulation.model.pair import functions_of_pair
from fedjax_drag.types import Params


def functions_of(model: Any, example: jax.Array, frozen: bool = False) -> ModelFunctions:
    """A user's model as pure functions of all its parameters.

    Args:
      model: a linen module, an nnx module or a pair ``(init, apply)``, with or without modes.
      example: an input ``[1, ...]``.
      frozen: whether its statistics never change.

    Raises:
      ValueError: its call needs an argument that is not known.
    """
    inner = model.model if isinstance(model, WithModes) else model
    if is_pair(inner):
        return functions_of_pair(model, example)
    if isinstance(inner, nn.Module):
        return functions_of_linen(model, example, frozen)
    from fedjax_drag.simulation.model.nnx import functions_of_nnx  # here: imports nnx, which takes 0.2 s

    return functions_of_nnx(model, frozen)


def make_model(
    functions: ModelFunctions,
    trainable: paths.Trainable | None,
    compute_dtype: str,
    loss: Loss,
    preprocess: Callable[[jax.Array], jax.Array],
    num_classes: int,
) -> Model:
    """The model of a run.

    Args:
      functions: of the user's model.
      trainable: which of its parameters are trained; None for all.
      compute_dtype: of the forward and backward pass; parameters, statistics and logits stay as they are.
      loss: ``(logits [B, C], labels [B]) -> [B]``.
      preprocess: from stored examples to model inputs.
      num_classes: C.
    """
    narrow = _narrowed(compute_dtype)

    def init(key: PRNGKeyArray) -> tuple[Params, ModelState]:
        params, statistics = functions.init(key)
        if trainable is None:
            return params, ModelState((), statistics)
        trained, frozen = paths.split(params, trainable)
        return trained, ModelState(frozen, statistics)

    def apply(params: Params, state: ModelState, x: jax.Array) -> Any:
        everything = narrow(paths.joined(params, state.frozen))
        return _wide(functions.evaluate(everything, state.statistics, narrow(x)), compute_dtype)

    def train(
        params: Params, state: ModelState, x: jax.Array, rngs: Streams, real: jax.Array | None
    ) -> tuple[Any, Statistics]:
        everything = narrow(paths.joined(params, state.frozen))
        logits, statistics = functions.train(everything, state.statistics, narrow(x), rngs, real)
        return _wide(logits, compute_dtype), statistics

    return Model(init, apply, train, loss, preprocess, num_classes, functions.streams)


def _narrowed(compute_dtype: str) -> Callable[[Any], Any]:
    """What brings floating arrays to the dtype of the computation."""
    if compute_dtype == "float32":
        return lambda arrays: arrays

    def leaf(x: jax.Array) -> jax.Array:
        return x.astype(compute_dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return lambda arrays: jax.tree.map(leaf, arrays)


def _wide(logits: Any, compute_dtype: str) -> Any:
    return logits if compute_dtype == "float32" else logits.astype(jnp.float32)
