"""Components checked against the signatures of their builders, and their defaults written out.

An argument whose type is that of a nested kind is a component itself, treated alike. Nothing is built here.
"""

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_drag import checks
from fedjax_drag.experiment.build.own_parts import Builder, Code, installed_points, load_installed, own_builder
from fedjax_drag.experiment.build.registry import TABLES
from fedjax_drag.experiment.config.components import (
    COMPONENTS,
    KIND_OF,
    SCHEDULED,
    Component,
    each,
    fits,
    phrase,
    split,
    table_of,
    unknown_key,
)
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.config.own import OwnName, is_own, own_names, with_own_names
from fedjax_drag.simulation.options import LARGEST

_LARGEST_NUMBER = float(np.finfo(np.float32).max)


def resolve(config: Config, code: Code | None = None) -> Config:
    """Checks every component's name and arguments, and writes out the defaults it relies on.

    Args:
      config: a single-run configuration.
      code: what code the configuration may refer to; None to read one that is not to be run: components that refer to
        code stay as written, without a builder.

    Returns:
      The configuration with default arguments filled in, other than those that the experiment supplies; components
      inside components are of the class :class:`~fedjax_drag.experiment.config.components.Component` as well.

    Raises:
      ValueError: an unknown name or argument, a wrong type, a required argument left out, or code that may not be run.
    """
    resolved: dict[str, Any] = {}
    for key, table in ({key: key for key in COMPONENTS} | SCHEDULED).items():
        chosen = functools.partial(_resolve, table, key, supplied=KIND_OF[table].supplied, code=code)
        resolved[key] = each(getattr(config, key), chosen)
    return dataclasses.replace(config, **resolved)


def arguments(table: str, builder: Callable[..., Any]) -> dict[str, tuple[inspect.Parameter, Any]]:
    """What a configuration can give to a builder.

    Args:
      table: which of :data:`~fedjax_drag.experiment.build.registry.TABLES` the builder is in.
      builder: the builder.

    Returns:
      Parameter and type of every argument that a YAML value can express.
    """
    types_of = _hints(builder)
    elsewhere = {"name"} | {name for name in KIND_OF[table].supplied if name in COMPONENTS}
    return {
        name: (parameter, types_of.get(name, Any))
        for name, parameter in inspect.signature(builder).parameters.items()
        if name not in elsewhere
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and phrase(types_of.get(name, Any)) not in ("", "null")
    }


def _resolve(table: str, where: str, component: Component, supplied: Sequence[str], code: Code | None) -> Component:
    """Checks a component and those inside it, and writes out their defaults.

    Args:
      table: which of :data:`~fedjax_drag.experiment.build.registry.TABLES` it is chosen from.
      where: its dotted key.
      component: what the configuration says.
      supplied: arguments that the experiment supplies here.
      code: what code it may refer to.
    """
    builder = _builder(table, where, component, code)
    if builder is None:
        return dataclasses.replace(component, table=table)
    parameters, allowed = inspect.signature(builder).parameters, arguments(table, builder)
    filled: dict[str, Any] = {}
    for name, value in component.arguments.items():
        if name in parameters and name not in COMPONENTS and any(own_names(value)):
            allowed.setdefault(name, (parameters[name], Any))  # from Python, arguments are of any type
        if name in parameters and name not in allowed:
            instead = f"set the top-level key {name!r}" if name in COMPONENTS else "it can only be given from Python"
            raise ValueError(f"{where}.{name}: not an argument that a configuration can express; {instead}")
        if name not in allowed:
            raise unknown_key(name, allowed, f"{where} {component.label}")
    for name, (parameter, hint) in allowed.items():
        if name in component.arguments:
            filled[name] = _resolve_argument(f"{where}.{name}", component.arguments[name], hint, supplied, code)
        elif name not in supplied:
            if parameter.default is parameter.empty:
                raise ValueError(f"{where}.{name}: missing; {component.label} needs it ({phrase(hint)})")
            default = with_own_names(parameter.default)
            if not any(own_names(default)):  # a default that no file can hold stays with the builder
                filled[name] = default
    return Component(component.name, filled, table, builder)


def _builder(table: str, where: str, component: Component, code: Code | None) -> Builder | None:
    """What a component is built by; None for code that is not to be run."""
    name = component.name
    if is_own(name):
        return own_builder(where, name, code, table, bool(component.arguments))
    if name in TABLES[table]:
        return TABLES[table][name]
    points = installed_points(table)
    if name not in points:
        names, keys = [*TABLES[table], *points], [key for key in COMPONENTS if name in TABLES[key]]
        if keys:
            hint = f"must be one of {', '.join(names)}; did you mean {keys[0]}={name}?"
            raise ValueError(f"{where}.name={name!r}: {hint}")
        if name == "none" and where in KIND_OF and KIND_OF[where].optional:
            raise ValueError(f"{where}.name={name!r}: must be one of {', '.join(names)}; did you mean {where}=null?")
        checks.one_of(f"{where}.name", name, names)
    return load_installed(name, points[name])


def _resolve_argument(where: str, value: Any, hint: Any, supplied: Sequence[str], code: Code | None) -> Any:
    table = table_of(hint)
    if table and isinstance(value, str | Mapping | Component):
        inherited = [name for name in KIND_OF[table].supplied if name in supplied]
        return _resolve(table, where, value if isinstance(value, Component) else split(where, value), inherited, code)
    if any(own_names(value)):  # objects that are no components: the builder knows what they are
        return _objects(value)
    if not fits(value, hint):
        raise ValueError(f"{where}={value!r}: must be {phrase(hint)}")
    return _within_range(where, value, hint) if isinstance(value, int | float) and checks.is_concrete(value) else value


def _objects(value: Any) -> Any:
    """A value in which Python objects are their names alone, to any depth."""
    if isinstance(value, Mapping):
        is_object = len(value) == 1 and isinstance(value.get("name"), OwnName)
        return value["name"] if is_object else {key: _objects(entry) for key, entry in value.items()}
    return [_objects(entry) for entry in value] if isinstance(value, list | tuple) else value


def _within_range(where: str, value: int | float, hint: Any) -> int | float:
    """A number that the device can represent; builders decide about infinity and NaN."""
    whole = not fits(0.5, hint)
    largest = LARGEST if whole else _LARGEST_NUMBER
    if largest < abs(value) < math.inf and not where.endswith(".seed"):
        raise ValueError(f"{where}={value!r}: must be at most {largest:{'' if whole else 'g'}} in size")
    return value if whole or abs(value) <= LARGEST else float(value)


def _hints(builder: Callable[..., Any]) -> dict[str, Any]:
    """The types of a builder's arguments."""
    try:
        return typing.get_type_hints(builder.func if isinstance(builder, functools.partial) else builder)
    except (NameError, TypeError):  # imported for the type checker only, or no function: nothing to check against
        return {}
