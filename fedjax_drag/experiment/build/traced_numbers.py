"""The numbers of a configuration that one compiled program can take as inputs: what a sweep need not compile anew."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Union

from fedjax_drag.experiment.build.own_parts import is_own
from fedjax_drag.experiment.build.resolve import arguments
from fedjax_drag.experiment.config.components import COMPONENTS, SCHEDULED, Component
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.types import is_scalar

_KEYS = tuple(key for key in COMPONENTS if key not in ("data", "partition", "model"))
"""Components that are part of the program, and whose shapes do not depend on their numbers."""


def numbers(config: Config) -> dict[str, float]:
    """Numbers that may be traced, by dotted key; builders declare them by an argument of type ``Any``.

    Args:
      config: resolved.
    """
    result: dict[str, Any] = {}
    for key in (*_KEYS, *SCHEDULED):
        value = getattr(config, key)
        if isinstance(value, Component):
            result |= _inside(key, value)
        elif _is_number(value):
            result[key] = value
    return result


def with_numbers(config: Config, values: Mapping[str, Any]) -> Config:
    """``config`` with other numbers, also traced ones, inside its components.

    Args:
      config: resolved.
      values: by dotted key, of those in :func:`numbers`; keys that are no component's are left alone.
    """
    changed: dict[str, Component] = {}
    for dotted, value in values.items():
        key, *path = dotted.split(".")
        if path:
            changed[key] = _replaced(changed[key] if key in changed else getattr(config, key), path, value)
    return dataclasses.replace(config, **changed)


def _inside(where: str, component: Component) -> dict[str, float]:
    result: dict[str, Any] = {}
    if component.builder is None:
        return {}
    allowed = arguments(component.table, component.builder)
    own = is_own(component.name)
    for name, value in component.arguments.items():
        dotted = f"{where}.{name}"
        if isinstance(value, Component):
            result |= _inside(dotted, value)
        elif _is_number(value) and (_may_be_traced(allowed[name][1]) or (own and isinstance(value, float))):
            result[dotted] = value
    return result


def _replaced(component: Component, path: Sequence[str], value: Any) -> Component:
    name, *below = path
    inner = _replaced(component.arguments[name], below, value) if below else value
    return dataclasses.replace(component, arguments={**component.arguments, name: inner})


def _may_be_traced(hint: Any) -> bool:
    in_union = typing.get_origin(hint) in (Union, types.UnionType) and Any in typing.get_args(hint)
    return hint is Any or in_union or is_scalar(hint)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
