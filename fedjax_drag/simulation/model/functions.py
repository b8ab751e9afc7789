"""What a user's model becomes: pure functions of its parameters and its statistics."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import flax.linen as nn
import jax
from flax import nnx
from jaxtyping import PRNGKeyArray

from fedjax_drag.models.modes import WithModes
from fedjax_drag.naming import name_of
from fedjax_drag.simulation.model.model import Statistics, Streams
from fedjax_drag.types import Params

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@runtime_checkable
class ForwardFn(Protocol):
    """A forward pass in training."""

    def __call__(
        self, params: Params, statistics: Statistics, x: jax.Array, rngs: Streams, real: jax.Array | None, /
    ) -> tuple[jax.Array, Statistics]:
        """Computes logits ``[B, C]`` and the statistics after the batch, of which ``real`` marks what is no padding."""
        ...


class ModelFunctions(NamedTuple):
    """A user's model.

    Attributes:
      init: ``(key) -> (params, statistics)``, of all parameters.
      evaluate: ``(params, statistics, x) -> logits [B, C]``, without random numbers.
      train: the forward pass in training.
      streams: names of the random streams of the forward pass in training.
    """

    init: Callable[[PRNGKeyArray], tuple[Params, Statistics]]
    evaluate: Callable[[Params, Statistics, jax.Array], Any]
    train: ForwardFn
    streams: tuple[str, ...] = ()


def model_name(model: Any) -> str:
    """What a message begins with: ``model=`` and its class, or ``(init, apply)``."""
    inner = model.model if isinstance(model, WithModes) else model
    if is_pair(inner):
        return "model=(init, apply)"
    made = inner.func if isinstance(inner, functools.partial) else inner
    return f"model={type(made).__name__ if isinstance(made, nn.Module | nnx.Module) else name_of(made)}"


def is_model(value: Any) -> bool:
    """Whether ``value`` has one of the forms of a model."""
    inner = value.model if isinstance(value, WithModes) else value
    return isinstance(inner, nn.Module | nnx.Module) or is_pair(inner) or is_maker(inner)


def is_maker(value: Any) -> bool:
    """Whether ``value`` is a function ``(rngs) -> nnx module``, such as the class of one."""
    if not callable(value) or isinstance(value, nn.Module | nnx.Module):
        return False
    if isinstance(value, type) and not issubclass(value, nnx.Module):
        return False
    try:
        # The metaclass of nnx modules hides the signature of their classes.
        parameters = list(inspect.signature(value.__init__ if isinstance(value, type) else value).parameters.values())
    except (TypeError, ValueError):
        return False
    parameters = parameters[1:] if isinstance(value, type) else parameters
    needed = [one.name for one in parameters if one.default is one.empty and one.kind not in _VARIADIC]
    return needed == ["rngs"]


def is_pair(value: Any) -> bool:
    """Whether ``value`` is a pair ``(init, apply)`` of functions."""
    return isinstance(value, tuple) and len(value) == 2 and all(callable(part) for part in value)
