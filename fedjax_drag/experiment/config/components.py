"""Components: what a configuration chooses by name, with the arguments of its builder, to any depth."""

import dataclasses
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

COMPONENTS = (
    "data",
    "partition",
    "model",
    "algorithm",
    "aggregator",
    "client",
    "root_client",
    "local_optimizer",
    "loss",
    "augmentation",
    "attack",
)
"""Keys whose value is a component."""

OPTIONAL = ("local_optimizer", "augmentation", "attack")
"""Those of them that may be null."""

SCHEDULED = ("step_size",)
"""Keys whose value is a number, or a component: a schedule of the round."""

MAPPING = "a mapping with a name and arguments"
"""How a component is written that is not a bare name."""


@dataclasses.dataclass(frozen=True)
class Component:
    """A builder's name with its arguments.

    Attributes:
      name: which builder.
      arguments: keyword arguments that the configuration gives it; a component among them is a mapping with its
        name and arguments, or a bare name.
    """

    name: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)


def split(where: str, value: Any) -> Component:
    """A component from its name, or from a mapping with a name and arguments.

    Args:
      where: its dotted key, for the error.
      value: what the configuration says.

    Raises:
      ValueError: it is neither.
    """
    value = _named(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}={value!r}: must be a name, or {MAPPING}")
    if not isinstance(value.get("name"), str):
        raise ValueError(f"{where}.name={value.get('name')!r}: must be the name of one; 'fedjax-drag list' shows them")
    return Component(value["name"], {str(k): v for k, v in value.items() if k != "name"})


def merge_component(old: Any, new: Any) -> Any:
    """``old`` with the arguments that ``new`` gives it, and with those inside them; ``new`` if that is another one."""
    old, new = _named(old), _named(new)
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    if new.get("name", old.get("name")) != old.get("name"):
        return dict(new)
    nested = [key for key in new if isinstance(old.get(key), Mapping) or isinstance(new[key], Mapping)]
    return {**old, **new, **{key: merge_component(old.get(key), new[key]) for key in nested}}


def unknown_key(key: str, known: Iterable[str], where: str = "") -> None:
    """Raises ValueError, with the nearest spelling, unless ``key`` is one of ``known``.

    Args:
      key: the key to look up.
      known: keys that are allowed.
      where: what the key belongs to, such as ``"aggregator drag"``.
    """
    known = list(known)
    if key in known:
        return
    near = get_close_matches(str(key), known, n=1) or [k for k in known if k in str(key)][:1]
    hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(known) or 'no arguments'}"
    raise ValueError(f"unknown key {key!r}{f' of {where}' if where else ''}; {hint}")


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value
