"""The numbers of a configuration that one compiled program can take as inputs: what a sweep need not compile anew."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

from fedjax_drag.experiment.build import registry
from fedjax_drag.experiment.build import signatures
from fedjax_drag.experiment.config.components import COMPONENTS, SCHEDULED, Component, split
from fedjax_drag.experiment.config.config import Config

_KEYS = tuple(key for key in COMPONENTS if key not in ("data", "partition", "model"))
"""Components that are part of the program, and whose shapes do not depend on their numbers."""


def numbers(config: Config) -> dict[str, float]:
    """Numbers that may be traced, by dotted key; builders say so with an argument of type ``Any``.

    Args:
      config: resolved.
    """
    found: dict[str, Any] = {}
    for key in (*_KEYS, *SCHEDULED):
        value = getattr(config, key)
        if isinstance(value, Component):
            found |= _inside(_table(key), key, value)
        elif _is_number(value):
            found[key] = value
    return found


def with_numbers(config: Config, values: Mapping[str, Any]) -> Config:
    """``config`` with other numbers, also traced ones, inside its components.

    Args:
      config: resolved.
      values: by dotted key, of those in :func:`numbers`; keys that are no component's are left alone.
    """
    changed: dict[str, Component] = {}
    for dotted, value in values.items():
        key, _, inner = dotted.partition(".")
        if inner:
            component = changed[key] if key in changed else getattr(config, key)
            changed[key] = Component(component.name, _replaced(component.arguments, inner.split("."), value))
    return dataclasses.replace(config, **changed)


def _inside(table: str, where: str, component: Component) -> dict[str, float]:
    found: dict[str, Any] = {}
    allowed = signatures.arguments(table, registry.TABLES[table][component.name])
    for name, value in component.arguments.items():
        hint = allowed[name][1]
        dotted = f"{where}.{name}"
        if isinstance(value, Mapping) and (inner := signatures.table_of(hint)):
            found |= _inside(inner, dotted, split(dotted, value))
        elif _is_number(value) and _may_be_traced(hint):
            found[dotted] = value
    return found


def _replaced(arguments: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    name, *below = path
    return {**arguments, name: _replaced(arguments[name], below, value) if below else value}


def _table(key: str) -> str:
    return "schedule" if key in SCHEDULED else key


def _may_be_traced(hint: Any) -> bool:
    return hint is Any or (typing.get_origin(hint) in (Union, types.UnionType) and Any in typing.get_args(hint))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
