"""Components: what a configuration chooses by name, with the arguments of its builder, to any depth."""

import dataclasses
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from fedjax_drag.experiment.config.own import short
from fedjax_drag.simulation.planning.calls import ALIASES

COMPONENTS = (
    "data",
    "partition",
    "model",
    "algorithm",
    "aggregator",
    "client",
    "privacy",
    "root_client",
    "local_optimizer",
    "loss",
    "augmentation",
    "attack",
    "compression",
    "downlink_compression",
)
"""Keys whose value is a component."""

OPTIONAL = ("privacy", "local_optimizer", "augmentation", "attack", "compression", "downlink_compression")
"""Those of them that may be null."""

SCHEDULED = ("step_size",)
"""Keys whose value is a number, or a component: a schedule of the round."""

INSIDE = {
    "num_clients": "partition.num_clients",
    "beta": "partition.beta",
    "hidden": "model.hidden",
    "momentum": "local_optimizer.momentum",
    "server_optimizer": "aggregator.server_optimizer",
    "c": "aggregator.c",
}
"""Arguments that are often written without the component that they belong to."""

MAPPING = "a mapping with a name and arguments"
"""How a component is written that is not a bare name."""


@dataclasses.dataclass(frozen=True)
class Component:
    """A builder's name with its arguments.

    Attributes:
      name: which builder.
      arguments: keyword arguments from the configuration. A component among them is a mapping or a bare name as it was
        written, and a :class:`Component` once it is resolved.
      table: the registry's table that a resolved component is chosen from; empty before.
      builder: the function that a resolved component is built by; None before, and for code that is not to be run.
    """

    name: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    table: str = dataclasses.field(default="", compare=False, repr=False)
    builder: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """What it is called in tables and figures."""
        return short(self.name)

    def to_mapping(self) -> dict[str, Any]:
        """Its name and arguments as plain values, as :func:`split` reads them."""
        inner = {key: x.to_mapping() if isinstance(x, Component) else x for key, x in self.arguments.items()}
        return {"name": self.name, **inner}


def split(where: str, value: Any) -> Component:
    """A component from its name, or from a mapping with a name and arguments.

    Args:
      where: its dotted key, for the error.
      value: what the configuration says.

    Raises:
      ValueError: it is neither.
    """
    if isinstance(value, str):
        return Component(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}={value!r}: must be a name, or {MAPPING}")
    if not isinstance(value.get("name"), str):
        raise ValueError(f"{where}.name={value.get('name')!r}: must be the name of one; 'fedjax-drag list' shows them")
    return Component(value["name"], {str(k): v for k, v in value.items() if k != "name"})


def unknown_key(key: str, known: Iterable[str], where: str = "") -> ValueError:
    """The error for a key that does not exist, with the nearest spelling.

    Args:
      key: the unknown key.
      known: keys that are allowed.
      where: what the key belongs to, such as ``"aggregator drag"``.
    """
    known = list(known)
    meant = ALIASES.get(str(key)) or INSIDE.get(str(key), "")
    elsewhere = [meant] if meant.partition(".")[0] in known else []
    near = elsewhere or get_close_matches(str(key), known, n=1) or [k for k in known if k in str(key)][:1]
    hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(known) or 'no arguments'}"
    return ValueError(f"unknown key {key!r}{f' of {where}' if where else ''}; {hint}")
