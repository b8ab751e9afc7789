"""What configurations are called in figures, and what several of them have in common."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedjax_drag.experiment.config.components import Component, split
from fedjax_drag.experiment.config.config import Config, flatten
from fedjax_drag.experiment.config.own import short
from fedjax_drag.experiment.plain import first

DATA_TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "femnist": "FEMNIST",
    "svhn": "SVHN",
    "digits": "handwritten digits (8x8)",
    "synthetic": "synthetic data",
}

_UNNAMED = ("name", "seed", "compare", "mesh", "time_clients")
"""Keys that make no difference between lines of a figure."""

_FIRST = ("algorithm", "aggregator", "attack")
"""Components that a label starts with; the others follow in the order of the configuration."""

_SELF_EXPLAINED = ("algorithm", "aggregator", "client", "attack", "data", "model")
"""Components whose value is a label without the key."""

_SHARES = ("byzantine_fraction", "num_byzantine")
"""Keys that say how many clients are malicious."""

_MOST_VALUES = 4
_SEPARATOR = "   \N{MIDDLE DOT}   "
COMMA = re.compile(r", (?![^\[({]*[])}])")  # outside brackets


def distinct(configs: Sequence[Config]) -> list[str]:
    """Labels that say what differs between configurations: method, attack, then other keys.

    Names are used where they differ, less what all of them have in common; configurations that share a name are told
    apart by the values that differ between them. The seed is left out.
    """
    names = {config.name: COMMA.split(config.name) for config in configs}
    common = set[str]().union(*names.values()).intersection(*names.values())
    own = {name: ", ".join(part for part in parts if part not in common) for name, parts in names.items()}
    if not all(own.values()):
        own = {name: name for name in names}
    flat = [flatten(config) for config in configs]
    labels = []
    for mine in flat:
        parts = [own[mine["name"]]] if len(names) > 1 else []
        parts += _differences(mine, [other for other in flat if other["name"] == mine["name"]])
        labels.append(", ".join(parts) or mine["name"])
    return labels


def method(config: Config) -> str:
    """What trained: the algorithm, or the rule that it merely lifts."""
    return config.aggregator.label if config.algorithm.name == "from_aggregator" else config.algorithm.label


def shared(configs: Sequence[Config]) -> str:
    """What all configurations have in common, on one line: model, partition, M, S, U, B and attack."""
    common = [
        {describe(config) for config in configs} for describe in (_model, _clients, _partition, _round, _adversary)
    ]
    return _SEPARATOR.join(part for values in common if len(values) == 1 for part in values if part)


def header(configs: Sequence[Config]) -> list[tuple[str, str]]:
    """Data set, partition, model, training and attack of all configurations, the values that differ listed."""
    wanted: Mapping[str, Callable[[Config], str]] = {
        "data": data_title,
        "partition": lambda c: ", ".join(filter(None, (_partition(c), _clients(c)))),
        "model": _model,
        "method": method,
        "training": lambda c: f"{c.rounds:,} rounds, {_round(c)}",
        "attack": lambda c: _attack(c.attack) if c.attack is not None else "none",
        "malicious clients": _share,
    }
    return [(name, text) for name, describe in wanted.items() if (text := _listed(map(describe, configs)))]


def data_title(config: Config) -> str:
    """The name of the data set, as it is written in papers."""
    return DATA_TITLES.get(config.data.name, config.data.label)


def clean(text: str, length: int) -> str:
    """One printable line of bounded length: labels and names may come from anywhere."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _differences(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[str]:
    """Values of a flat configuration that differ from those of ``others``.

    An argument is compared with those of components of the same name only.
    """
    keys = []
    for key, value in mine.items():
        owner = key.removesuffix(".name").rpartition(".")[0]
        alike = [other for other in others if other.get(f"{owner}.name") == mine.get(f"{owner}.name")]
        if key not in _UNNAMED and any(other.get(key, ...) != value for other in alike):
            keys.append(key)
    if "algorithm.name" in keys and mine["algorithm.name"] == "from_aggregator":
        keys = ["aggregator.name", *(key for key in keys if key not in ("algorithm.name", "aggregator.name"))]
    if mine.get("attack", ...) is None:
        keys = [key for key in keys if key not in _SHARES]
    heads = {key: key.partition(".")[0] for key in keys}
    keys.sort(key=lambda key: _FIRST.index(heads[key]) if heads[key] in _FIRST else len(_FIRST))  # a stable sort
    return [_part(key, mine[key], keys) for key in keys]


def _part(key: str, value: Any, keys: Sequence[str]) -> str:
    """``krum``, ``no attack`` or ``beta=0.1``; the whole key where its last word is that of another key as well."""
    key = key.removesuffix(".name")
    if key == "attack" and value is None:
        return "no attack"
    if key in _SELF_EXPLAINED and isinstance(value, str):
        return short(value)
    if key in _SHARES and value is not None:
        return f"{value if isinstance(value, int) else _percent(value)} malicious"
    last = key.rpartition(".")[2]
    ambiguous = sum(other.removesuffix(".name").rpartition(".")[2] == last for other in keys) > 1
    written = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{key if ambiguous else last}={written}"


def _listed(texts: Iterable[str]) -> str:
    """The different texts that are not empty, of many the first ones."""
    return "; ".join(first(list(dict.fromkeys(text for text in texts if text)), _MOST_VALUES))


def _model(config: Config) -> str:
    """The architecture with its sizes, such as ``mlp 64-32``."""
    hidden = config.model.arguments.get("hidden")
    sizes = "-".join(map(str, hidden)) if isinstance(hidden, list | tuple) else ""
    return f"{config.model.label} {sizes}".strip()


def _round(config: Config) -> str:
    """Cohort, local work and batch size."""
    length = config.local_epochs or config.local_steps
    number = f"{length[0]} to {length[1]}" if isinstance(length, list | tuple) else f"{length:g}"
    unit = "epoch" if config.local_epochs else "step"
    batch = "full batches" if config.batch_size == "full" else f"batch {config.batch_size}"
    return f"{config.cohort_size} per round, {number} local {unit}{'s' * (length != 1)}, {batch}"


def _clients(config: Config) -> str:
    number = config.partition.arguments.get("num_clients")
    return f"{number} clients" if number else ""  # the data may decide how many there are


def _partition(config: Config) -> str:
    arguments = config.partition.arguments
    match config.partition.name:
        case "dirichlet":
            return f"{'balanced ' * bool(arguments.get('balanced'))}Dirichlet({arguments.get('beta')}) split"
        case "label_affinity":
            return f"label affinity {arguments.get('q')}"
        case "gamma_similarity":
            return f"{arguments.get('gamma')}-similarity split"
        case "iid":
            return "IID split"
    return "" if config.partition.label == "as_given" else f"{config.partition.label} split"


def _share(config: Config) -> str:
    """How many clients are malicious; empty without an attack."""
    if config.attack is None:
        return ""
    return _percent(config.byzantine_fraction or 0.0) if config.num_byzantine is None else f"{config.num_byzantine}"


def _percent(share: float) -> str:
    """A share in [0, 1] in percent: ``30%``, and ``12.5%`` of one in eight."""
    return f"{100 * share:.3g}%"


def _attack(attack: Component) -> str:
    """``label flip``; of an attack around another ``backdoor, during``."""
    own, inner = attack.label.replace("_", " "), attack.arguments.get("attack")
    if inner is None:
        return own
    return f"{_attack(inner if isinstance(inner, Component) else split('attack.attack', inner))}, {own}"


def _adversary(config: Config) -> str:
    if config.attack is None or not (config.byzantine_fraction or config.num_byzantine):
        return ""
    return f"{_share(config)} malicious clients ({_attack(config.attack)})"
