"""What builders take, by their signatures: which of their arguments a YAML value can be, and how to say so."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from fedjax_drag.experiment.build.registry import NESTED, SUPPLIED
from fedjax_drag.experiment.config.components import COMPONENTS


def arguments(key: str, builder: Callable[..., Any]) -> dict[str, tuple[inspect.Parameter, Any]]:
    """What a configuration can say to a builder.

    Args:
      key: the component's key, such as ``"aggregator"``.
      builder: its builder.

    Returns:
      Parameter and type of every argument that a YAML value can express.
    """
    types_of = hints(builder)
    elsewhere = {"name"} | {name for name in SUPPLIED[key] if name in COMPONENTS}
    return {
        name: (parameter, types_of.get(name, Any))
        for name, parameter in inspect.signature(builder).parameters.items()
        if name not in elsewhere and phrase(types_of.get(name, Any)) not in ("", "null")
    }


def phrase(hint: Any) -> str:
    """What a YAML value of type ``hint`` looks like; empty if there is none."""
    match hint:
        case _ if hint is Any or hint is inspect.Parameter.empty:
            return "a value"
        case _ if hint is None or hint is type(None):
            return "null"
        case _ if typing.get_origin(hint) in (Union, types.UnionType):
            parts = [phrase(part) for part in typing.get_args(hint)]
            return " or ".join(dict.fromkeys(part for part in parts if part))
        case _ if table := table_of(hint):
            article = "an" if table[0] in "aeiou" else "a"
            return f"{article} {table} (a name, or a mapping with a name and arguments)"
        case _ if typing.get_origin(hint) is Literal:
            return "one of " + ", ".join(str(choice) for choice in typing.get_args(hint))
        case _ if _is_sequence(hint):
            inner = typing.get_args(hint)[:1]
            words = phrase(inner[0]) if inner else "a value"
            return f"a list, each entry {words}" if words else ""
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(hint, "")


def table_of(hint: Any) -> str:
    """The table of the component that an argument of type ``hint`` can be; empty if it is a plain value."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    origins = [typing.get_origin(part) or part for part in parts]
    return next((NESTED[origin] for origin in origins if origin in NESTED), "")


def fits(value: Any, hint: Any) -> bool:
    """Whether a YAML value can be an argument of type ``hint``; builders check ranges."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if _is_sequence(hint):
        inner = (typing.get_args(hint) or (Any,))[0]
        return isinstance(value, list | tuple) and all(fits(entry, inner) for entry in value)
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    return hint in (Any, inspect.Parameter.empty) and not isinstance(value, Mapping)


def hints(builder: Callable[..., Any]) -> dict[str, Any]:
    """The types of a builder's arguments."""
    try:
        return typing.get_type_hints(builder)
    except NameError:  # a name that is imported for the type checker only: nothing to check against
        return {}


def _is_sequence(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    record = hasattr(origin, "_fields")  # a NamedTuple
    return inspect.isclass(origin) and issubclass(origin, Sequence) and not (record or issubclass(origin, str | bytes))
