"""What a user may give as a model, and what messages call it."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from fedjax_drag.models.modes import WithModes
from fedjax_drag.naming import name_of

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def model_name(model: Any) -> str:
    """What a message begins with: ``model=`` and its class, or ``(init, apply)``."""
    inner = model.model if isinstance(model, WithModes) else model
    if is_pair(inner):
        return "model=(init, apply)"
    made = inner.func if isinstance(inner, functools.partial) else inner
    return f"model={type(made).__name__ if isinstance(made, nn.Module) or is_nnx(made) else name_of(made)}"


def is_model(value: Any) -> bool:
    """Whether ``value`` has one of the forms of a model."""
    inner = value.model if isinstance(value, WithModes) else value
    return isinstance(inner, nn.Module) or is_nnx(inner) or is_pair(inner) or is_maker(inner)


def is_nnx(value: Any) -> bool:
    """Whether ``value`` is an nnx module."""
    return isinstance(value, _nnx_modules())


def _nnx_modules() -> tuple[type, ...]:
    """The class of all nnx modules; none where nobody has imported nnx, which takes 0.2 s."""
    nnx = sys.modules.get("flax.nnx")
    return () if nnx is None else (nnx.Module,)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function or a class, also of an nnx module's, whose metaclass hides it."""
    shown = inspect.signature(function)
    if not inspect.isclass(function) or not all(one.kind in _VARIADIC for one in shown.parameters.values()):
        return shown
    return inspect.Signature(list(inspect.signature(function.__init__).parameters.values())[1:])


def is_maker(value: Any) -> bool:
    """Whether ``value`` is a function ``(rngs) -> nnx module``, such as the class of one."""
    if not callable(value) or isinstance(value, nn.Module) or is_nnx(value):
        return False
    if isinstance(value, type) and not issubclass(value, _nnx_modules()):
        return False
    try:
        parameters = signature_of(value).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [one.name for one in parameters if one.default is one.empty and one.kind not in _VARIADIC]
    return needed == ["rngs"]


def is_pair(value: Any) -> bool:
    """Whether ``value`` is a pair ``(init, apply)`` of functions."""
    return isinstance(value, tuple) and len(value) == 2 and all(callable(part) for part in value)
