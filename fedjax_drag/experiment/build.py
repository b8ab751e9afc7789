"""Names become functions: the only tables from a configuration's strings to builders.

A component's arguments are checked against its builder's signature, and those that the experiment
already knows (the number of classes, of clients, of malicious clients) are supplied when the
configuration leaves them out. An argument whose type is in :data:`NESTED` is a component itself, treated alike.
"""

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

import numpy as np
import optax

from fedjax_drag import aggregators, algorithms, attacks, checks, clients, data, losses, models
from fedjax_drag.data import FederatedDataset, augmentation, partition
from fedjax_drag.experiment import optimizers
from fedjax_drag.experiment.config import COMPONENTS, SCHEDULED, Component, Config, split, unknown_key
from fedjax_drag.simulation.federation import count_malicious
from fedjax_drag.types import Aggregator, ClientRule

Builders = Mapping[str, Callable[..., Any]]

AGGREGATORS: Builders = {
    "fedavg": aggregators.fedavg,
    "fedexp": aggregators.fedexp,
    "drag": aggregators.drag,
    "br_drag": aggregators.br_drag,
    "fltrust": aggregators.fltrust,
    "root_only": aggregators.root_only,
    "geometric_median": aggregators.geometric_median,
    "rfa": aggregators.rfa,
    "raga": aggregators.raga,
    "geomed": aggregators.geomed,
    "autogm": aggregators.autogm,
    "median": aggregators.median,
    "trimmed_mean": aggregators.trimmed_mean,
    "krum": aggregators.krum,
    "multi_krum": aggregators.multi_krum,
    "bulyan": aggregators.bulyan,
    "centered_clipping": aggregators.centered_clipping,
    "norm_clipping": aggregators.norm_clipping,
    "signsgd_majority": aggregators.signsgd_majority,
    "clustering": aggregators.clustering,
    "clusterguard": aggregators.clusterguard,
    "foolsgold": aggregators.foolsgold,
    "foolsgold_taco": aggregators.foolsgold_taco,
    "nnm": aggregators.nnm,
    "bucketing": aggregators.bucketing,
    "rescaled_mean": aggregators.rescaled_mean,
}
CLIENTS: Builders = {
    "sgd": clients.sgd,
    "fedprox": clients.fedprox,
    "fedsam": clients.fedsam,
    "robust_sgd": clients.robust_sgd,
}
ALGORITHMS: Builders = {
    "from_aggregator": algorithms.from_aggregator,
    "scaffold": algorithms.scaffold,
    "adabest": algorithms.adabest,
    "feddyn": algorithms.feddyn,
    "feddc": algorithms.feddc,
    "fedacg": algorithms.fedacg,
    "stem": algorithms.stem,
    "taco": algorithms.taco,
    "tailored_fedprox": algorithms.tailored_fedprox,
    "fednova": algorithms.fednova,
    "mime": algorithms.mime,
}
ATTACKS: Builders = {
    "sign_flip": attacks.sign_flip,
    "scale_noise": attacks.scale_noise,
    "gaussian": attacks.gaussian,
    "alie": attacks.alie,
    "ipm": attacks.ipm,
    "min_max": attacks.min_max,
    "min_sum": attacks.min_sum,
    "mimic": attacks.mimic,
    "krum_attack": attacks.krum_attack,
    "trim_attack": attacks.trim_attack,
    "optimised": attacks.optimised,
    "label_flip": attacks.label_flip,
    "freeloader": attacks.freeloader,
    "backdoor": attacks.backdoor,
}
PARTITIONS: Builders = {
    "iid": partition.iid,
    "dirichlet": partition.dirichlet,
    "label_affinity": partition.label_affinity,
    "label_groups": partition.label_groups,
    "shards": partition.shards,
    "quantity_skew": partition.quantity_skew,
    "dirichlet_quantity": partition.dirichlet_quantity,
    "natural": partition.natural,
}
MODELS: Builders = {
    "mlp": models.mlp,
    "cnn": models.cnn,
    "lenet": models.lenet,
    "resnet18": models.resnet18,
    "lstm": models.lstm,
}
OPTIMIZERS: Builders = {
    "sgd": optimizers.sgd,
    "adam": optimizers.adam,
    "yogi": optimizers.yogi,
    "adagrad": optimizers.adagrad,
}
LOCAL_OPTIMIZERS: Builders = {"sgd": optimizers.local_sgd}
SCHEDULES: Builders = {
    "linear_schedule": optimizers.linear_schedule,
    "cosine_decay_schedule": optimizers.cosine_decay_schedule,
    "exponential_decay": optimizers.exponential_decay,
}
LOSSES: Builders = {"cross_entropy": losses.cross_entropy}
AUGMENTATIONS: Builders = {"crop_flip": augmentation.crop_flip}
DATASETS: Builders = dict.fromkeys([name for name, _ in data.DATASETS], data.load) | {
    "synthetic": data.synthetic,
    "shakespeare": data.load_shakespeare,
}

TABLES: Mapping[str, Builders] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "aggregator": AGGREGATORS,
    "client": CLIENTS,
    "root_client": CLIENTS,
    "local_optimizer": LOCAL_OPTIMIZERS,
    "loss": LOSSES,
    "augmentation": AUGMENTATIONS,
    "attack": ATTACKS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
"""Builders of each component key of a configuration, and of the kinds that occur only inside another."""

_LARGEST, _LARGEST_COUNT = float(np.finfo(np.float32).max), int(np.iinfo(np.int32).max)

NESTED: Mapping[Any, str] = {
    Aggregator: "aggregator",
    ClientRule: "client",
    optax.GradientTransformation: "optimizer",
    Callable: "schedule",
}
"""Types of the arguments that are components themselves, with the table that each is chosen from.

The functions among the builders' arguments are functions of the round.
"""

SUPPLIED: Mapping[str, tuple[str, ...]] = {
    "data": ("name",),
    "partition": ("fed", "seed"),
    "model": ("num_classes",),
    "algorithm": ("num_clients", "aggregator", "client"),
    "aggregator": ("num_clients", "num_byzantine"),
    "client": (),
    "root_client": (),
    "local_optimizer": (),
    "loss": (),
    "augmentation": (),
    "attack": ("num_classes", "num_clients"),
    "optimizer": (),
    "schedule": (),
}
"""Arguments of each component's builder that the experiment supplies where the configuration does not.

A component hands on to those inside it what it is told itself: an aggregator inside an aggregator knows the number of
malicious clients, one inside a client rule does not, for there it reduces examples.
"""


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


def arguments(key: str, builder: Callable[..., Any]) -> dict[str, tuple[inspect.Parameter, Any]]:
    """What a configuration can say to a builder.

    Args:
      key: the component's key, such as ``"aggregator"``.
      builder: its builder.

    Returns:
      Parameter and type of every argument that a YAML value can express.
    """
    hints = _hints(builder)
    elsewhere = {"name"} | {name for name in SUPPLIED[key] if name in COMPONENTS}
    return {
        name: (parameter, hints.get(name, Any))
        for name, parameter in inspect.signature(builder).parameters.items()
        if name not in elsewhere and phrase(hints.get(name, Any)) not in ("", "null")
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


def _resolve(table: str, where: str, component: Component, supplied: Sequence[str]) -> Component:
    """Checks a component and those inside it, and writes out their defaults.

    Args:
      table: which of :data:`TABLES` it is chosen from.
      where: its dotted key.
      component: what the configuration says.
      supplied: arguments that the experiment knows here.
    """
    builders = TABLES[table]
    checks.one_of(f"{where}.name", component.name, builders)
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


def _resolve_argument(where: str, value: Any, hint: Any, supplied: Sequence[str]) -> Any:
    table = table_of(hint)
    if table and isinstance(value, str | Mapping):
        handed_on = [name for name in SUPPLIED[table] if name in supplied]
        inner = _resolve(table, where, split(where, value), handed_on)
        return {"name": inner.name, **inner.arguments}
    if not _fits(value, hint):
        raise ValueError(f"{where}={value!r}: must be {phrase(hint)}")
    return _within_range(where, value, hint) if checks.is_concrete(value) else value


def _within_range(where: str, value: int | float, hint: Any) -> int | float:
    """A number that the device can hold; builders say what they think of infinity and of what is not a number."""
    whole = not _fits(0.5, hint)
    largest = _LARGEST_COUNT if whole else _LARGEST
    if largest < abs(value) < math.inf and not where.endswith(".seed"):
        raise ValueError(f"{where}={value!r}: must be at most {largest:{'' if whole else 'g'}} in size")
    return value if whole or abs(value) <= _LARGEST_COUNT else float(value)


def _call(table: str, component: Component, known: Mapping[str, Any], where: str = "") -> Any:
    """Calls a component's builder, its errors prefixed with the configuration's key.

    Args:
      table: which of :data:`TABLES` it is chosen from.
      component: resolved.
      known: what the experiment knows here.
      where: its dotted key; default the table's.
    """
    where = where or table
    builder = TABLES[table][component.name]
    parameters = inspect.signature(builder).parameters
    told = {name: known[name] for name in SUPPLIED[table] if name in known}
    hints = _hints(builder)
    given: dict[str, Any] = {}
    for name, value in component.arguments.items():
        inner = table_of(hints.get(name, Any))
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


def table_of(hint: Any) -> str:
    """The table of the component that an argument of type ``hint`` can be; empty if it is a plain value."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    origins = [typing.get_origin(part) or part for part in parts]
    return next((NESTED[origin] for origin in origins if origin in NESTED), "")


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
    return hint in (Any, inspect.Parameter.empty) and not isinstance(value, Mapping)
