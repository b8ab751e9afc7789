"""Groups of cells that share a program: they differ in numbers, seeds and the split of the data only."""

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.registry import TABLES
from fedjax_drag.experiment.build.traced_numbers import numbers
from fedjax_drag.experiment.config.components import Component
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.config.own import identities
from fedjax_drag.simulation.participation.availability import as_trace

_DATA = frozenset({"name", "seed", "partition", "byzantine_fraction", "num_byzantine"}) | {
    *("root_size", "root_bias", "root_source", "availability", "dropout_rate"),
}
"""Keys that change the inputs of a program and not the program."""


_SHARED = ("train", "validation", "test", "mean", "std")
"""What a data set has that all cells of a program share; a partition of the user's own may change it."""


class Group(NamedTuple):
    """Cells that can run as one program.

    Attributes:
      places: of the cells in what was grouped.
      numbers: of each cell, those in which they differ, by dotted key.
    """

    places: list[int]
    numbers: list[dict[str, float]]


def group(configs: Sequence[Config], federations: Sequence[FederatedDataset], starts: Sequence[int]) -> list[Group]:
    """Groups runs, in the order of their first cells.

    Args:
      configs: resolved.
      federations: their data; of runs in one group only the split differs.
      starts: rounds that each has done already.
    """
    traced = [numbers(config) for config in configs]
    alike: dict[str, list[int]] = {}
    for place, (config, fed, start) in enumerate(zip(configs, federations, starts, strict=True)):
        alike.setdefault(_signature(config, traced[place], fed, start), []).append(place)
    return [Group(places, _differing([traced[place] for place in places])) for places in alike.values()]


def _differing(values: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The numbers in which cells differ; the others stay constants of the program."""
    names = [name for name in values[0] if any(own[name] != values[0][name] for own in values)]
    return [{name: own[name] for name in names} for own in values]


def _signature(config: Config, traced: Mapping[str, float], fed: FederatedDataset, start: int) -> str:
    """Equal for runs of one group."""
    mapping = {key: value for key, value in config.to_mapping().items() if key not in _DATA}
    program = {key: _without(key, value, traced) for key, value in mapping.items()}
    malicious, _ = build.malicious_in_cohort(config, fed.num_clients)
    counted = any(map(_counts_malicious, (config.algorithm, config.aggregator)))
    counted = counted or "num_byzantine" in build.method(config, fed.num_clients).needs
    trace = as_trace(config.availability, fed.num_clients)
    absent = [None if trace is None else trace.shape, config.dropout_rate > 0]
    split = id(fed) if config.attack is not None and _may_read_split(config.attack) else None
    around = [fed.num_clients, malicious > 0, malicious if counted else None, start, *absent, split]
    around += [id(getattr(fed, name)) for name in _SHARED]
    return json.dumps([program, identities(mapping), *around], sort_keys=True)


def _without(key: str, value: Any, traced: Mapping[str, float]) -> Any:
    if isinstance(value, Mapping):
        return {name: _without(f"{key}.{name}", inner, traced) for name, inner in value.items()}
    return "a number" if key in traced else value


def _counts_malicious(component: Component) -> bool:
    """Whether the program is built for a number of malicious clients, which rules take as a constant."""
    assert component.builder is not None
    inner = [value for value in component.arguments.values() if isinstance(value, Component)]
    own = "num_byzantine" in inspect.signature(component.builder).parameters
    return own or any(_counts_malicious(part) for part in inner if part.table == "aggregator")


def _may_read_split(attack: Component) -> bool:
    """Whether an attack is built from the split of the data, as those that are not the package's own may be."""
    assert attack.builder is not None
    inner = [value for value in attack.arguments.values() if isinstance(value, Component)]
    is_ours = attack.builder is TABLES["attack"].get(attack.name)
    own = not is_ours and "fed" in inspect.signature(attack.builder).parameters
    return own or any(_may_read_split(part) for part in inner if part.table == "attack")
