"""Names become functions: the only tables from a configuration's strings to builders.

A component's arguments are checked against its builder's signature, and those that the experiment
already knows (the number of classes, of clients, of malicious clients) are supplied when the
configuration leaves them out.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from fedjax_drag import aggregators, algorithms, attacks, checks, clients, data, models
from fedjax_drag.data import FederatedDataset, partition
from fedjax_drag.experiment.config import COMPONENTS, Component, Config, unknown_key

Builders = Mapping[str, Callable[..., Any]]

AGGREGATORS: Builders = {
    "fedavg": aggregators.fedavg,
    "drag": aggregators.drag,
    "br_drag": aggregators.br_drag,
    "fltrust": aggregators.fltrust,
    "geometric_median": aggregators.geometric_median,
    "median": aggregators.median,
    "krum": aggregators.krum,
}
CLIENTS: Builders = {"sgd": clients.sgd, "fedprox": clients.fedprox}
ALGORITHMS: Builders = {"from_aggregator": algorithms.from_aggregator, "scaffold": algorithms.scaffold}
ATTACKS: Builders = {
    "sign_flip": attacks.sign_flip,
    "scale_noise": attacks.scale_noise,
    "label_flip": attacks.label_flip,
}
PARTITIONS: Builders = {
    "iid": partition.iid,
    "dirichlet": partition.dirichlet,
    "label_affinity": partition.label_affinity,
}
MODELS: Builders = {"mlp": models.mlp, "cnn": models.cnn, "lenet": models.lenet}
DATASETS: Builders = dict.fromkeys([name for name, _ in data.DATASETS], data.load) | {"synthetic": data.synthetic}

TABLES: Mapping[str, Builders] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "aggregator": AGGREGATORS,
    "client": CLIENTS,
    "attack": ATTACKS,
}
"""Builders of each component key of a configuration."""

SUPPLIED: Mapping[str, tuple[str, ...]] = {
    "data": ("name",),
    "partition": ("fed", "seed"),
    "model": ("num_classes",),
    "algorithm": ("num_clients", "aggregator", "client"),
    "aggregator": ("num_clients", "num_byzantine"),
    "client": (),
    "attack": ("num_classes", "num_clients"),
}
"""Arguments of each component's builder that the experiment supplies where the configuration does not."""


def resolve(config: Config) -> Config:
    """Checks every component's name and arguments, and writes out the defaults it relies on.

    Args:
      config: a single-run configuration.

    Returns:
      The configuration with default arguments filled in, other than those that the experiment
      supplies.

    Raises:
      ValueError: an unknown name or argument, a wrong type, or a required argument left out.
    """
    resolved = {key: _resolve(key, getattr(config, key)) for key in COMPONENTS}
    return dataclasses.replace(config, **resolved)


def federation(config: Config) -> FederatedDataset:
    """Loads and partitions the data of a resolved configuration.

    Raises:
      FileNotFoundError: the data are not on this machine.
      ValueError: the data or the partition cannot be had as configured.
    """
    fed = _call("data", config.data, {"name": config.data.name})
    return _call("partition", config.partition, {"fed": fed, "seed": config.seed})


def method(config: Config, num_clients: int) -> Any:
    """The algorithm of a resolved configuration, with its aggregator and client rule inside.

    Args:
      config: a single-run configuration.
      num_clients: size of the federation, M.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`.

    Raises:
      ValueError: a builder refuses its arguments, or the algorithm brings a part of its own that
        the configuration also asks for.
    """
    builder = ALGORITHMS[config.algorithm.name]
    num_byzantine = round(config.byzantine_fraction * config.cohort_size)
    known = {"num_clients": num_clients, "num_byzantine": num_byzantine}
    for key, plain in (("aggregator", "fedavg"), ("client", "sgd")):
        component = getattr(config, key)
        if key in inspect.signature(builder).parameters:
            known[key] = _call(key, component, known)
        elif component.name != plain:
            raise ValueError(
                f"{key}.name={component.name!r}: algorithm {config.algorithm.name} has its own; leave it at {plain}"
            )
    return _call("algorithm", config.algorithm, known)


def model(config: Config, fed: FederatedDataset) -> Any:
    """The Flax module of a resolved configuration, for the classes of ``fed``."""
    return _call("model", config.model, {"num_classes": fed.num_classes})


def attack(config: Config, fed: FederatedDataset) -> Any:
    """The attack of a resolved configuration, or None."""
    if config.attack is None:
        return None
    return _call("attack", config.attack, {"num_classes": fed.num_classes, "num_clients": fed.num_clients})


def arguments(key: str, builder: Callable[..., Any]) -> dict[str, tuple[inspect.Parameter, Any]]:
    """What a configuration can say to a builder.

    Args:
      key: the component's key, such as ``"aggregator"``.
      builder: its builder.

    Returns:
      Parameter and type of every argument that a YAML value can express.
    """
    hints = _hints(builder)
    return {
        name: (parameter, hints.get(name, Any))
        for name, parameter in inspect.signature(builder).parameters.items()
        if name not in ("name", *COMPONENTS) and phrase(hints.get(name, Any)) not in ("", "null")
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
        case _ if typing.get_origin(hint) is Literal:
            return "one of " + ", ".join(str(choice) for choice in typing.get_args(hint))
        case _ if _is_sequence(hint):
            inner = typing.get_args(hint)[:1]
            words = phrase(inner[0]) if inner else "a value"
            return f"a list, each entry {words}" if words else ""
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(hint, "")


def _resolve(key: str, component: Component | None) -> Component | None:
    if component is None:
        return None
    builders = TABLES[key]
    checks.one_of(f"{key}.name", component.name, builders)
    builder = builders[component.name]
    allowed = arguments(key, builder)
    filled: dict[str, Any] = {}
    for name in component.arguments:
        if name in inspect.signature(builder).parameters and name not in allowed:
            where = f"set the top-level key {name!r}" if name in COMPONENTS else "it can only be given from Python"
            raise ValueError(f"{key}.{name}: not an argument that a configuration can express; {where}")
        unknown_key(name, allowed, f"{key} {component.name}")
    for name, (parameter, hint) in allowed.items():
        if name in component.arguments:
            value = component.arguments[name]
            if not _fits(value, hint):
                raise ValueError(f"{key}.{name}={value!r}: must be {phrase(hint)}")
            filled[name] = value
        elif name not in SUPPLIED[key]:
            if parameter.default is parameter.empty:
                raise ValueError(f"{key}.{name}: missing; {component.name} needs it ({phrase(hint)})")
            filled[name] = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
    return Component(component.name, filled)


def _call(key: str, component: Component, known: Mapping[str, Any]) -> Any:
    """Calls a component's builder, its errors prefixed with the configuration's key."""
    builder = TABLES[key][component.name]
    parameters = inspect.signature(builder).parameters
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in component.arguments.items()}
    try:
        return builder(**{name: value for name, value in known.items() if name in parameters} | given)
    except FileNotFoundError:
        raise
    except (TypeError, ValueError) as error:
        about_argument = any(str(error).startswith(f"{name}=") for name in parameters)
        where = f"{key}." if about_argument else f"{key} {component.name}: "
        raise ValueError(f"{where}{error}") from error


def _hints(builder: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(builder)
    except NameError:  # a name that is imported for the type checker only: nothing to check against
        return {}


def _is_sequence(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    record = hasattr(origin, "_fields")  # a NamedTuple
    return inspect.isclass(origin) and issubclass(origin, Sequence) and not (record or issubclass(origin, str | bytes))


def _fits(value: Any, hint: Any) -> bool:
    """Whether a YAML value can be an argument of type ``hint``; builders check ranges."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if _is_sequence(hint):
        inner = (typing.get_args(hint) or (Any,))[0]
        return isinstance(value, list | tuple) and all(_fits(entry, inner) for entry in value)
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    return hint is Any or hint is inspect.Parameter.empty
