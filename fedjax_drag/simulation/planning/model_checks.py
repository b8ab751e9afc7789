"""Checks of a model on the shapes of its data: what it would silently do otherwise. Nothing is computed."""

import inspect
from collections.abc import Callable
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_drag.models.cnn import CNN
from fedjax_drag.models.lenet import LeNet
from fedjax_drag.models.mlp import MLP
from fedjax_drag.models.resnet import ResNet18
from fedjax_drag.simulation.program.work import Model
from fedjax_drag.types import Params

_OF_NUMBERS = (nn.Dense, nn.DenseGeneral, nn.Conv, MLP, CNN, LeNet, ResNet18)
"""Modules for which an input is a quantity."""

_REMEDY = "not supported, as local training gives a model no random numbers; must do without"


def check_model(module: nn.Module, model: Model, example: jax.Array) -> Params:
    """Refuses a model that a run would not train as it was written.

    Args:
      module: the Flax module.
      model: the same as pure functions.
      example: an input ``[1, *input_shape]``.

    Returns:
      Shapes of the parameters.

    Raises:
      ValueError: the module needs more than its inputs, has dropout or other random layers, also ones that are off by
        default, takes tokens as quantities, has collections beside ``params``, or does not return ``[1, C]``.
    """
    name = f"model={type(module).__name__}"
    _check_arguments(name, module)
    try:
        with nn.intercept_methods(_looking_at_layers(name)):
            params = jax.eval_shape(model.init, jax.random.key(0))
        logits: Any = jax.eval_shape(model.apply, params, example)
    except flax.errors.InvalidRngError as error:
        raise ValueError(f"{name}: draws random numbers in its forward pass: {_REMEDY}") from error
    if getattr(logits, "shape", None) != (1, model.num_classes):
        got = getattr(logits, "shape", type(logits).__name__)
        raise ValueError(f"model: returns shape {got} for one example; must be (1, {model.num_classes}), the logits")
    for flag, default in _flags(module):
        if _needs_random_numbers(module, params, example, {flag: not default}):
            raise ValueError(f"{name}: draws random numbers with {flag}={not default}: {_REMEDY}")
    return params


def _check_arguments(name: str, module: nn.Module) -> None:
    """Refuses a module whose call needs more than the inputs."""
    further = list(inspect.signature(module.__call__).parameters.values())[1:]
    needed = [x.name for x in further if x.default is x.empty and x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
    if needed:
        raise ValueError(
            f"{name}: __call__ needs {', '.join(needed)}; must need the inputs only, the rest with a default"
        )


def _looking_at_layers(name: str) -> Callable[..., Any]:
    """An interceptor of :func:`flax.linen.intercept_methods` that refuses layers as they are called."""

    def look(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        layer = context.module
        if context.method_name == "__call__":
            rate = getattr(layer, "rate" if isinstance(layer, nn.Dropout) else "dropout_rate", 0.0)
            of_flax = type(layer).__module__.startswith("flax.")
            if of_flax and isinstance(rate, int | float) and rate > 0:
                raise ValueError(f"{name}: has dropout ({type(layer).__name__} of rate {rate:g}): {_REMEDY}")
            tokens = args and hasattr(args[0], "dtype") and jnp.issubdtype(args[0].dtype, jnp.integer)
            if tokens and isinstance(layer, _OF_NUMBERS):
                raise ValueError(
                    f"{name}: takes tokens ({args[0].dtype} of shape {args[0].shape}) as quantities; must begin with "
                    "an embedding, as models.lstm and flax.linen.Embed do, or be given floating inputs"
                )
        return call(*args, **kwargs)

    return look


def _flags(module: nn.Module) -> list[tuple[str, bool]]:
    """Arguments of a module's call that are switched on or off, such as ``train=False``, with their defaults."""
    parameters = inspect.signature(module.__call__).parameters.values()
    return [(x.name, x.default) for x in parameters if isinstance(x.default, bool)]


def _needs_random_numbers(module: nn.Module, params: Params, example: jax.Array, flags: dict[str, bool]) -> bool:
    apply: Callable[..., Any] = module.apply
    try:
        jax.eval_shape(lambda p, x: apply({"params": p}, x, **flags), params, example)
    except flax.errors.InvalidRngError:
        return True
    except Exception:  # what else a module of one's own does with a flag that no run sets is its own affair
        pass
    return False
