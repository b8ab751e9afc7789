"""Components: what a configuration chooses by name, with the arguments of its builder, to any depth.

And the types of their arguments: what a value of one looks like in YAML.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, Union

import flax.linen as nn
import optax

from fedjax_drag.clocks import Clock
from fedjax_drag.compression import Compressor
from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment.config.own import short
from fedjax_drag.graphs import Graph
from fedjax_drag.graphs.mixing import Mixing
from fedjax_drag.models.modes import WithModes
from fedjax_drag.selection import Selection
from fedjax_drag.simulation.options import ALIASES
from fedjax_drag.types import Aggregator, Algorithm, Attack, ClientRule, Metric, Optimizer


class ComponentKind(NamedTuple):
    """One kind of what a configuration can name.

    Attributes:
      keys: under which one may stand in a configuration; of a kind that is an argument only, what it is called.
      listed: what ``fedjax-drag list`` calls them, and the last part of their entry points' group.
      makes: what their builders make; ``Callable`` for a function.
      modules: of the package, whose public names are the builders: functions, and the classes that are one of
        ``makes``; None for the one that is called like the list.
      supplied: arguments that the experiment supplies where the configuration does not. A component passes them on to
        those inside it: an aggregator inside an aggregator gets the number of malicious clients. One inside a client
        rule does not, since it reduces examples there.
      optional: whether the keys may be null.
      nested: whether an argument of this type is a component itself.
      argument_only: whether the keys are none of a configuration.
      others: public names of the modules that no configuration can give.
      several: whether the value of its key is a list of them.
    """

    keys: tuple[str, ...]
    listed: str
    makes: tuple[Any, ...]
    modules: tuple[str, ...] | None = None
    supplied: tuple[str, ...] = ()
    optional: bool = False
    nested: bool = False
    argument_only: bool = False
    others: tuple[str, ...] = ()
    several: bool = False

    @property
    def is_function(self) -> bool:
        """Whether one is itself a function."""
        return Callable in self.makes


_OPTAX = ("experiment.build.optimizers",)
_OPTIMIZERS = (optax.GradientTransformation, Optimizer)

KINDS = (
    ComponentKind(
        ("aggregator",), "aggregators", (Aggregator,), supplied=("num_clients", "num_byzantine"), nested=True
    ),
    ComponentKind(("algorithm",), "algorithms", (Algorithm,), supplied=("num_clients", "aggregator", "client")),
    ComponentKind(("client", "root_client"), "clients", (ClientRule,), nested=True),
    ComponentKind(
        ("privacy",),
        "privacy",
        (Aggregator, ClientRule),
        supplied=("aggregator", "client"),
        optional=True,
        others=("epsilon", "noise_multiplier_for"),
    ),
    ComponentKind(
        ("attack",), "attacks", (Attack,), supplied=("fed", "num_classes", "num_clients"), optional=True, nested=True
    ),
    ComponentKind(
        ("compression", "downlink_compression"),
        "compressors",
        (Compressor,),
        modules=("compression",),
        optional=True,
        others=("error_feedback",),
    ),
    ComponentKind(("selection",), "selections", (Selection,), modules=("selection",), optional=True, nested=True),
    ComponentKind(("clock",), "clocks", (Clock,), optional=True, nested=True),
    ComponentKind(("graph",), "graphs", (Graph,), nested=True, argument_only=True, others=("spectral_gap",)),
    ComponentKind(("mixing",), "mixings", (Mixing,), modules=("graphs.mixing",), nested=True, argument_only=True),
    ComponentKind(("data",), "datasets", (FederatedDataset,), modules=(), supplied=("name",)),
    ComponentKind(
        ("partition",), "partitions", (FederatedDataset,), modules=("data.partition",), supplied=("fed", "seed")
    ),
    ComponentKind(
        ("model",),
        "models",
        (nn.Module, WithModes),
        supplied=("num_classes", "rngs"),
        nested=True,
        others=("with_modes",),
    ),
    ComponentKind(
        ("optimizer",),
        "optimizers",
        _OPTIMIZERS,
        modules=(*_OPTAX, "server_optimizers"),
        nested=True,
        argument_only=True,
    ),
    ComponentKind(("local_optimizer",), "local_optimizers", _OPTIMIZERS, modules=(), optional=True),
    ComponentKind(("schedule",), "schedules", (Callable,), modules=_OPTAX, nested=True, argument_only=True),
    ComponentKind(("loss",), "losses", (Callable,)),
    ComponentKind(("metrics",), "metrics", (Metric,), optional=True, several=True),
    ComponentKind(("augmentation",), "augmentations", (Callable,), modules=("data.augmentation",), optional=True),
)
"""All that a configuration can name, in the order of their lists. Other forms of models are those of
:func:`~fedjax_drag.simulation.model.model.is_model`."""

KIND_OF = {key: kind for kind in KINDS for key in kind.keys}
"""By key."""

COMPONENTS = tuple(key for key, kind in KIND_OF.items() if not kind.argument_only)
"""Keys whose value is a component."""

OPTIONAL = tuple(key for key in COMPONENTS if KIND_OF[key].optional)
"""Those of them that may be null."""

SCHEDULED = {"step_size": "schedule"}
"""Keys whose value is a number, or a component of the kind that they are given with."""

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
      table: the key of the kind that a resolved component is of; empty before.
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


def each(value: Any, function: Callable[[Component], Any]) -> Any:
    """``function`` of a component, or of each of several; any other value as it is."""
    if isinstance(value, tuple):
        return tuple(each(one, function) for one in value)
    return function(value) if isinstance(value, Component) else value


def split_all(key: str, value: Any) -> Any:
    """What a key of components has: one of :func:`split`, several, or None where that is allowed."""
    if value is None and key in OPTIONAL:
        return None
    if not KIND_OF[SCHEDULED.get(key, key)].several:
        return split(key, value)
    return tuple(split(key, one) for one in (value if isinstance(value, list | tuple) else [value]))


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
        raise ValueError(f"{where}.name={value.get('name')!r}: must be the name of one; see 'fedjax-drag list KIND'")
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
    before, colon, after = str(key).partition(":")
    if colon and after and before in ("name", *known):  # which YAML takes for a key without a value
        hint = f"did you mean '{before}: {after}', with a space?"
    outer, dot, inner = str(key).partition(".")
    if dot and inner and outer in known:
        hint = f"did you mean {inner!r} inside {outer!r}? Dots are for overrides and axes"
    return ValueError(f"unknown key {key!r}{f' of {where}' if where else ''}; {hint}")


_PLAIN = {
    bool: ("true or false", bool),
    int: ("an integer", int),
    float: ("a number", int | float),
    str: ("a string", str),
}
"""Plain types: how a value is called, and the types that it may have."""


def phrase(hint: Any) -> str:
    """What a YAML value of type ``hint`` looks like; empty if YAML cannot express one."""
    if hint in _PLAIN:
        return _PLAIN[hint][0]
    if hint in (Any, inspect.Parameter.empty):
        return "a value"
    if hint in (None, type(None)):
        return "null"
    if alternatives := _alternatives(hint):
        return " or ".join(dict.fromkeys(filter(None, map(phrase, alternatives))))
    if table := table_of(hint):
        return f"{'an' if table[0] in 'aeiou' else 'a'} {table} (a name, or {MAPPING})"
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    entry = _entry_of(hint)
    inner = "" if entry is None else phrase(entry)
    return f"a list, each entry {inner}" if inner else ""


def table_of(hint: Any) -> str:
    """The table of the component that an argument of type ``hint`` can be; empty if it is a plain value."""
    origins = [typing.get_origin(part) or part for part in _alternatives(hint) or (hint,)]
    return next((kind.keys[0] for origin in origins for kind in KINDS if kind.nested and origin in kind.makes), "")


def fits(value: Any, hint: Any) -> bool:
    """Whether a YAML value can be an argument of type ``hint``; builders check ranges."""
    if hint in _PLAIN:
        return isinstance(value, _PLAIN[hint][1]) and (hint is bool or not isinstance(value, bool))
    if alternatives := _alternatives(hint):
        return any(fits(value, part) for part in alternatives)
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if hint in (None, type(None)):
        return value is None
    if (entry := _entry_of(hint)) is not None:
        return isinstance(value, list | tuple) and all(fits(part, entry) for part in value)
    return hint in (Any, inspect.Parameter.empty) and not isinstance(value, Mapping)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; none of another type."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else ()


def _entry_of(hint: Any) -> Any:
    """The type of a sequence's entries; None for what is no sequence."""
    origin = typing.get_origin(hint) or hint
    is_sequence = inspect.isclass(origin) and issubclass(origin, Sequence) and not issubclass(origin, str | bytes)
    return (typing.get_args(hint) or (Any,))[0] if is_sequence and not hasattr(origin, "_fields") else None
