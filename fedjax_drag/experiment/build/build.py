"""From a resolved configuration to what a run is made of: every component's builder called with its arguments.

Arguments that the experiment knows (the number of classes, of clients, of malicious clients) are supplied where the
configuration leaves them out.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax

from fedjax_drag.checks import ArgumentError, message_of
from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment.config.components import COMPONENTS, KIND_OF, Component, each
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.config.own import as_parts
from fedjax_drag.simulation.model.model import is_model
from fedjax_drag.simulation.program.federation import count_malicious, malicious_per_cohort
from fedjax_drag.simulation.settings import Settings

Arguments = ParamSpec("Arguments")
Traced = TypeVar("Traced")

_SAME = tuple(key.name for key in dataclasses.fields(Settings) if key.name not in ("algorithm", "data", "num_rounds"))
"""Options of a run that are keys of a configuration as well, by the same name."""


def dataset(config: Config) -> FederatedDataset:
    """Loads the data of a resolved configuration.

    Raises:
      FileNotFoundError: the data are not on this machine.
      ValueError: the data cannot be loaded as configured.
    """
    return part(config, "data", {"name": config.data.name})


def federation(config: Config, fed: FederatedDataset) -> FederatedDataset:
    """Splits the data of a resolved configuration among its clients.

    Raises:
      ValueError: the data cannot be split as configured.
    """
    return part(config, "partition", {"fed": fed, "seed": config.seed})


def method(config: Config, num_clients: int) -> Any:
    """The algorithm of a resolved configuration, with its aggregator and client rule inside.

    Args:
      config: a single-run configuration.
      num_clients: size of the federation, M.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`.

    Raises:
      ValueError: a builder refuses its arguments, the algorithm brings a part of its own that the configuration also
        asks for, or there are more malicious clients than clients.
    """
    builder = builder_of("algorithm", config.algorithm)
    number = count_malicious(
        num_clients, config.cohort_size, config.byzantine_fraction, config.num_byzantine, config.byzantine_of
    )
    fewest, most = malicious_per_cohort(num_clients, config.cohort_size, number, config.byzantine_of)
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
    if config.privacy is None:
        return _call("algorithm", config.algorithm, known)
    wanted = inspect.signature(builder_of("privacy", config.privacy)).parameters
    keys = [key for key in KIND_OF["privacy"].supplied if key in wanted]
    if missing := [key for key in keys if key not in known]:
        raise _not_private(config, f"has its own {missing[0]}")
    noisy = {keys[0]: _call("privacy", config.privacy, known)} if keys else {}
    private = _call("algorithm", config.algorithm, known | noisy)
    if noisy and getattr(private, "guarantee", None) is None:
        raise _not_private(config, "uses the messages in other ways as well")
    return private


def _not_private(config: Config, reason: str) -> ValueError:
    assert config.privacy is not None
    name = f"privacy.name={config.privacy.name!r}"
    return ValueError(f"{name}: algorithm {config.algorithm.name} {reason}; must be from_aggregator")


def part(config: Config, key: str, known: Mapping[str, Any] | None = None) -> Any:
    """What a resolved configuration has under a key: components built, None and other values as they are.

    Args:
      config: a single-run configuration.
      key: of a component, or ``"step_size"``.
      known: arguments that the experiment supplies where the configuration leaves them out.
    """
    return each(getattr(config, key), lambda one: _call(key, one, known or {}))


def settings(config: Config, fed: FederatedDataset) -> Settings:
    """The settings that a configuration asks for.

    Args:
      config: resolved.
      fed: its data, split among clients.

    Raises:
      ValueError: a part of the configuration is not valid.
    """
    algorithm = method(config, fed.num_clients)
    targets = jax.tree.leaves(fed.train.y)
    num_outputs = fed.num_classes or sum(math.prod(y.shape[1:]) for y in targets)  # of numbers and labels: each has one
    known = {"fed": fed, "num_classes": num_outputs, "num_clients": fed.num_clients}
    values = {key: part(config, key, known) for key in _SAME}
    made = Settings(algorithm, data=fed, num_rounds=config.rounds, **values)
    made.criterion.check_target("stop_when", config.stop_when)
    return made


def traced(trace: Callable[Arguments, Traced], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Traced:
    """Calls ``trace``; shapes or types that do not go together, or are too large, become a ValueError of one line."""
    try:
        return trace(*args, **kwargs)
    except (TypeError, OverflowError) as error:
        raise ValueError(message_of(error)) from error


def _call(where: str, component: Component, known: Mapping[str, Any]) -> Any:
    """Calls a component's builder, its errors prefixed with the configuration's key.

    Args:
      where: its dotted key.
      component: resolved.
      known: arguments that the experiment supplies to this component and to those inside it.
    """
    builder, kind = builder_of(where, component), KIND_OF[component.table]
    parameters = inspect.signature(builder).parameters
    supplied = {name: known[name] for name in kind.supplied if name in known}
    given: dict[str, Any] = {}
    for name, value in component.arguments.items():
        if isinstance(value, Component):
            given[name] = _call(f"{where}.{name}", value, supplied)
        else:
            value = as_parts(value)
            given[name] = tuple(value) if isinstance(value, list) else value
    try:
        arguments = {name: value for name, value in supplied.items() if name in parameters} | given
        if component.table == "model" and "rngs" in parameters:  # an nnx module, made by each run from its seed
            return functools.partial(builder, **arguments)
        part = builder(**arguments)
    except FileNotFoundError:
        raise
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        is_of_argument = isinstance(error, ArgumentError) and error.argument in parameters
        prefix = f"{where}." if is_of_argument else f"{where} {component.name}: "
        raise ValueError(f"{prefix}{error}") from error
    is_right = kind.is_function or isinstance(part, kind.makes)
    if not is_right and not (component.table == "model" and is_model(part)):
        raise ValueError(_of_another_kind(where, component, part))
    return part


def _of_another_kind(where: str, component: Component, part: Any) -> str:
    """What is wrong with a part that is not what its key asks for."""
    kinds = {key: KIND_OF[key] for key in COMPONENTS if not KIND_OF[key].is_function}
    keys = [key for key, kind in kinds.items() if isinstance(part, kind.makes)]
    is_of = kinds[keys[0]].makes[0] if keys else type(part)
    names = [is_of.__name__, KIND_OF[component.table].makes[0].__name__]
    is_a, must_be = (f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}" for name in names)
    hint = f"; it belongs under {keys[0]!r}" if keys else ""
    return f"{where}: {component.label} is {is_a}; must be {must_be}{hint}"


def builder_of(where: str, component: Component) -> Callable[..., Any]:
    """What a resolved component is built by.

    Args:
      where: its dotted key.
      component: resolved.

    Raises:
      ValueError: it is the user's own and was resolved without its code.
    """
    if component.builder is None:
        raise ValueError(f"{where}.name={component.name!r}: is the user's own, which is not loaded to read results")
    return component.builder


def _check_num_byzantine(where: str, component: Component, fewest: int, most: int) -> None:
    """Refuses a count of a rule, or of the one that it wraps, that contradicts the simulated attack."""
    for name, value in component.arguments.items():
        if isinstance(value, Component) and name == "aggregator":  # others count those of a group, or groups
            _check_num_byzantine(f"{where}.{name}", value, fewest, most)
        elif name == "num_byzantine" and isinstance(value, int) and not fewest <= value <= most:
            allowed = f"{fewest}" if fewest == most else f"between {fewest} (on the average) and {most} (at most)"
            raise ValueError(
                f"{where}.num_byzantine={value}: contradicts the malicious clients of a cohort, {allowed}; leave it out"
            )
