"""A linen module as pure functions."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.functions import ModelFunctions, model_name
from fedjax_drag.simulation.model.model import Statistics, Streams
from fedjax_drag.simulation.model.modes import modes_of
from fedjax_drag.types import Params

_USUAL, _ANY_OTHER = "dropout", "params"
"""The stream that most modules name, and the one from which Flax draws for a stream that was not given."""


def functions_of_linen(model: Any, example: jax.Array, frozen: bool = False) -> ModelFunctions:
    """The functions of a linen module.

    Args:
      model: the module, or one with modes.
      example: an input ``[1, ...]``.
      frozen: whether BatchNorm normalises by its running statistics in training too, and no collection changes.

    Raises:
      ValueError: its call needs an argument that is not known.
    """
    module: nn.Module = model.model if isinstance(model, WithModes) else model
    modes = modes_of(model, module.__call__, 1)
    apply: Callable[..., Any] = module.apply

    def init(key: PRNGKeyArray) -> tuple[Params, Statistics]:
        try:
            variables = dict(module.init(key, example, **modes.evaluation))
        except Exception as error:  # a user's module may raise anything
            what = f"fails for inputs {example.dtype}{list(example.shape)}"
            raise ValueError(f"{model_name(model)}: {what}: {checks.first_line(error)}") from error
        return variables.pop("params", {}), variables

    def evaluate(params: Params, statistics: Statistics, x: jax.Array) -> Any:
        return apply({"params": params, **statistics}, x, **modes.evaluation)

    def train(
        params: Params, statistics: Statistics, x: jax.Array, rngs: Streams, real: Bool[Array, " batch"] | None
    ) -> tuple[Any, Statistics]:
        arguments = {**modes.training, **({"rngs": dict(rngs)} if rngs else {})}
        variables = {"params": params, **statistics}
        if not statistics:
            return apply(variables, x, **arguments), statistics
        with _batch_norm(frozen, real):
            logits, changed = apply(variables, x, mutable=list(statistics), **arguments)
        return logits, statistics if frozen else _like(statistics, changed)

    streams = modes.streams if modes.streams is not None else _streams(init, train, example)
    return ModelFunctions(init, evaluate, train, streams)


def _streams(init: Callable[..., Any], train: Callable[..., Any], example: jax.Array) -> tuple[str, ...]:
    """The random streams that a module needs in training; of those with other names than dropout Flax's substitute."""
    for streams in ((), (_USUAL,)):

        def forward(key: PRNGKeyArray, names: tuple[str, ...] = streams) -> Any:
            return train(*init(key), example, dict.fromkeys(names, key), None)[0]

        with contextlib.suppress(flax.errors.InvalidRngError):
            jax.eval_shape(forward, jax.random.key(0))
            return streams
    return (_USUAL, _ANY_OTHER)


def _like(before: Statistics, changed: Mapping[str, Any]) -> Statistics:
    """The statistics after a batch, in the dtypes that they had before."""
    after = {**before, **changed}
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, dict(before))


@contextlib.contextmanager
def _batch_norm(frozen: bool, real: Bool[Array, " batch"] | None) -> Iterator[None]:
    """Within it, BatchNorm layers normalise by running statistics if ``frozen``, and else leave padding out."""

    def call(method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        layer = context.module
        if not isinstance(layer, nn.BatchNorm) or context.method_name != "__call__":
            return method(*args, **kwargs)
        if frozen:
            with _running_average(layer):
                return method(args[0])
        if real is not None and kwargs.get("mask") is None:
            kwargs = {**kwargs, "mask": real.reshape(-1, *[1] * (jnp.ndim(args[0]) - 1))}
        return method(*args, **kwargs)

    with nn.intercept_methods(call):
        yield


@contextlib.contextmanager
def _running_average(layer: nn.BatchNorm) -> Iterator[None]:
    """Within it, a layer uses its running statistics, whatever it was made with."""
    before = layer.use_running_average
    object.__setattr__(layer, "use_running_average", True)  # a bound module is frozen
    try:
        yield
    finally:
        object.__setattr__(layer, "use_running_average", before)
