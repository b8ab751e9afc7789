"""From a configuration to what a run is made of: every component's builder called with its arguments.

A component's arguments are checked against its builder's signature, and those that the experiment
already knows (the number of classes, of clients, of malicious clients) are supplied when the
configuration leaves them out. An argument whose type is in :data:`~fedjax_drag.experiment.build.registry.NESTED` is a
component itself, treated alike.
"""

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optax

from fedjax_drag import checks
from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment.build.registry import ALGORITHMS, SUPPLIED, TABLES
from fedjax_drag.experiment.config.components import COMPONENTS, SCHEDULED, Component, split, unknown_key
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.build.signatures import arguments, fits, hints, phrase, table_of
from fedjax_drag.simulation.program.federation import count_malicious

_LARGEST, _LARGEST_COUNT = float(np.finfo(np.float32).max), int(np.iinfo(np.int32).max)


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
    tables = {key: key for key in COMPONENTS} | dict.fromkeys(SCHEDULED, "schedule")
    given = {key: getattr(config, key) for key in tables}
    resolved = {
        key: _resolve(tables[key], key, part, SUPPLIED[tables[key]])
        for key, part in given.items()
        if isinstance(part, Component)
    }
    return dataclasses.replace(config, **resolved)


def dataset(config: Config) -> FederatedDataset:
    """Loads the data of a resolved configuration.

    Raises:
      FileNotFoundError: the data are not on this machine.
      ValueError: the data cannot be had as configured.
    """
    return _call("data", config.data, {"name": config.data.name})


def federation(config: Config, fed: FederatedDataset) -> FederatedDataset:
    """Splits the data of a resolved configuration among its clients.

    Raises:
      ValueError: the partition cannot be had as configured.
    """
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
    fewest, most = malicious_in_cohort(config, num_clients)
    if config.attack is not None and most:
        _check_num_byzantine("aggregator", config.aggregator, fewest, most)
    known = {"num_clients": num_clients, "num_byzantine": fewest}
    for key, plain in (("aggregator", "fedavg"), ("client", "sgd")):
        component = getattr(config, key)
        if key in inspect.signature(builder).parameters:
            known[key] = _call(key, component, known)
        elif component.name != plain:
            raise ValueError(
                f"{key}.name={component.name!r}: algorithm {config.algorithm.name} has its own; leave it at {plain}"
            )
    return _call("algorithm", config.algorithm, known)


def malicious_in_cohort(config: Config, num_clients: int) -> tuple[int, int]:
    """How many malicious clients a cohort has on the average, rounded up, and how many it can have.

    Args:
      config: a single-run configuration.
      num_clients: size of the federation, M.

    Raises:
      ValueError: there are more malicious clients than clients.
    """
    number = count_malicious(
        num_clients, config.cohort_size, config.byzantine_fraction, config.num_byzantine, config.byzantine_of
    )
    if config.byzantine_of == "cohort":
        return number, number
    return -(-number * config.cohort_size // num_clients), min(number, config.cohort_size)


def model(config: Config, fed: FederatedDataset) -> Any:
    """The Flax module of a resolved configuration, for the classes of ``fed``."""
    return _call("model", config.model, {"num_classes": fed.num_classes})


def attack(config: Config, fed: FederatedDataset) -> Any:
    """The attack of a resolved configuration, or None."""
    if config.attack is None:
        return None
    return _call("attack", config.attack, {"num_classes": fed.num_classes, "num_clients": fed.num_clients})


def step_size(config: Config) -> float | optax.Schedule:
    """The local step size of a resolved configuration: a number or a function of the round."""
    if isinstance(config.step_size, Component):
        return _call("schedule", config.step_size, {}, "step_size")
    return config.step_size


def part(config: Config, key: str) -> Any:
    """What a resolved configuration chooses for a component that depends on nothing else, or None.

    Args:
      config: a single-run configuration.
      key: ``"root_client"``, ``"local_optimizer"``, ``"loss"`` or ``"augmentation"``.
    """
    component = getattr(config, key)
    return None if component is None else _call(key, component, {})


def _resolve(table: str, where: str, component: Component, supplied: Sequence[str]) -> Component:
    """Checks a component and those inside it, and writes out their defaults.

    Args:
      table: which of :data:`~fedjax_drag.experiment.build.registry.TABLES` it is chosen from.
      where: its dotted key.
      component: what the configuration says.
      supplied: arguments that the experiment knows here.
    """
    builders = TABLES[table]
    _check_name(where, component.name, builders)
    builder = builders[component.name]
    allowed = arguments(table, builder)
    filled: dict[str, Any] = {}
    for name in component.arguments:
        if name in inspect.signature(builder).parameters and name not in allowed:
            instead = f"set the top-level key {name!r}" if name in COMPONENTS else "it can only be given from Python"
            raise ValueError(f"{where}.{name}: not an argument that a configuration can express; {instead}")
        unknown_key(name, allowed, f"{where} {component.name}")
    for name, (parameter, hint) in allowed.items():
        if name in component.arguments:
            filled[name] = _resolve_argument(f"{where}.{name}", component.arguments[name], hint, supplied)
        elif name not in supplied:
            if parameter.default is parameter.empty:
                raise ValueError(f"{where}.{name}: missing; {component.name} needs it ({phrase(hint)})")
            filled[name] = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
    return Component(component.name, filled)


def _check_name(where: str, name: str, builders: Mapping[str, Any]) -> None:
    """Refuses a name that is not in the table, and says under which key it would be."""
    keys = [key for key in COMPONENTS if name in TABLES[key]]
    if name not in builders and keys:
        raise ValueError(f"{where}.name={name!r}: must be one of {', '.join(builders)}; did you mean {keys[0]}={name}?")
    checks.one_of(f"{where}.name", name, builders)


def _resolve_argument(where: str, value: Any, hint: Any, supplied: Sequence[str]) -> Any:
    table = table_of(hint)
    if table and isinstance(value, str | Mapping):
        handed_on = [name for name in SUPPLIED[table] if name in supplied]
        inner = _resolve(table, where, split(where, value), handed_on)
        return {"name": inner.name, **inner.arguments}
    if not fits(value, hint):
        raise ValueError(f"{where}={value!r}: must be {phrase(hint)}")
    return _within_range(where, value, hint) if checks.is_concrete(value) else value


def _within_range(where: str, value: int | float, hint: Any) -> int | float:
    """A number that the device can hold; builders say what they think of infinity and of what is not a number."""
    whole = not fits(0.5, hint)
    largest = _LARGEST_COUNT if whole else _LARGEST
    if largest < abs(value) < math.inf and not where.endswith(".seed"):
        raise ValueError(f"{where}={value!r}: must be at most {largest:{'' if whole else 'g'}} in size")
    return value if whole or abs(value) <= _LARGEST_COUNT else float(value)


def _call(table: str, component: Component, known: Mapping[str, Any], where: str = "") -> Any:
    """Calls a component's builder, its errors prefixed with the configuration's key.

    Args:
      table: which of :data:`~fedjax_drag.experiment.build.registry.TABLES` it is chosen from.
      component: resolved.
      known: what the experiment knows here.
      where: its dotted key; default the table's.
    """
    where = where or table
    builder = TABLES[table][component.name]
    parameters = inspect.signature(builder).parameters
    told = {name: known[name] for name in SUPPLIED[table] if name in known}
    types_of = hints(builder)
    given: dict[str, Any] = {}
    for name, value in component.arguments.items():
        inner = table_of(types_of.get(name, Any))
        if inner and isinstance(value, Mapping):
            given[name] = _call(inner, split(f"{where}.{name}", value), told, f"{where}.{name}")
        else:
            given[name] = tuple(value) if isinstance(value, list) else value
    try:
        return builder(**{name: value for name, value in told.items() if name in parameters} | given)
    except FileNotFoundError:
        raise
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        about_argument = any(str(error).startswith((f"{name}=", f"{name}:")) for name in parameters)
        prefix = f"{where}." if about_argument else f"{where} {component.name}: "
        raise ValueError(f"{prefix}{error}") from error


def _check_num_byzantine(where: str, component: Component, fewest: int, most: int) -> None:
    """Refuses a count that a rule, or one inside it, is told and that contradicts the simulated attack."""
    for name, value in component.arguments.items():
        if isinstance(value, Mapping):
            _check_num_byzantine(f"{where}.{name}", split(f"{where}.{name}", value), fewest, most)
        elif name == "num_byzantine" and isinstance(value, int) and not fewest <= value <= most:
            allowed = f"{fewest}" if fewest == most else f"between {fewest} (on the average) and {most} (at most)"
            raise ValueError(
                f"{where}.num_byzantine={value}: contradicts the malicious clients of a cohort, {allowed}; leave it out"
            )
