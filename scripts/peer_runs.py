"""The runs of configs/peers as the tables of :mod:`peers` have them: of which table and setting, and their figures."""

import csv
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from fedjax_drag.experiment.config.config import Config, flatten
from fedjax_drag.experiment.run.results import StoredRun
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import load_grid
from reproduction.storing.settings import NO_RESULT

CONFIGS = Path(__file__).parents[1] / "configs" / "peers"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
RUNS = RESULTS / "peers_runs.csv"
LAST = 5
"""Evaluations whose mean is a figure of bucketing."""
REACHED = 0.97
"""Accuracy until which FedLab and McMahan et al. count rounds."""

_MIMICS = ("axes.attack=[{name: mimic, target: 14}, {name: mimic, target: 17}, {name: mimic, target: 1}]",)
_LABELS = ("partition={name: label_groups, num_clients: 10, fractions: [0.2], holders: random, seed: 42}",)
FURTHER: dict[str, tuple[str, ...]] = {
    "bucketing_mimic": ("axes.attack.target=[17, 1]",),
    "bucketing_momentum": _MIMICS,
    "flower_niid": _LABELS,
    "niid_cifar10": _LABELS,
    "nvflare": ("axes.partition.beta=[1.0, 0.5, 0.3]",),
}
"""By configuration, the overrides of what its header says is another command."""

_RULES = {"fedavg": "avg", "krum": "krum", "median": "cm", "rfa": "rfa", "centered_clipping": "cp"}
_ATTACKS = {"label_flip": "LF", "sign_flip": "BF", "ipm": "IPM", "alie": "ALIE", "mimic": "mimic"}
_SHOWN = {"avg": "mean", "krum": "Krum", "cm": "median", "rfa": "RFA", "cp": "clipping"}
_METHODS = {"scaffold": "SCAFFOLD", "fednova": "FedNova"}
_SPLITS = {"iid": "IID", "shards": "two shards"}
_DATA = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


class Setting(NamedTuple):
    """What the tables of bucketing tell apart, in their words.

    Attributes:
      rule: ``avg``, ``krum``, ``cm``, ``rfa`` or ``cp``.
      attack: ``LF``, ``BF``, ``IPM``, ``ALIE`` or ``mimic``.
      momentum: 0 or 0.9.
      noniid: whether a client has one or two labels.
      bucket_size: 0 or 2.
    """

    rule: str
    attack: str
    momentum: float
    noniid: bool
    bucket_size: int

    def __str__(self) -> str:
        alike = "" if self.noniid else " alike"
        return f"{_SHOWN[self.rule]} s={self.bucket_size} {self.attack} momentum={self.momentum:g}{alike}"


def setting_of(config: Config) -> Setting:
    """The setting of a run of bucketing."""
    rule, bucket_size = config.aggregator, 0
    if rule.name == "bucketing":
        rule, bucket_size = rule.arguments["aggregator"], rule.arguments["bucket_size"]
    name = rule if isinstance(rule, str) else rule["name"] if isinstance(rule, dict) else rule.name
    assert config.attack is not None
    momentum = config.client.arguments.get("beta", 0.0)
    return Setting(
        _RULES[name], _ATTACKS[config.attack.name], momentum, config.partition.arguments["gamma"] == 0, bucket_size
    )


def _accuracies(run: StoredRun) -> np.ndarray:
    return 100 * np.asarray(run.history["test_accuracy"])


def _method(config: Config) -> str:
    if config.algorithm.name in _METHODS:
        return _METHODS[config.algorithm.name]
    if config.client.name == "fedprox":
        mu = config.client.arguments["mu"]
        return "FedProx" if mu == 0.01 else f"FedProx ({mu:g})"
    return "FedAvg"


def _niid(run: StoredRun) -> str:
    split = "Dirichlet" if run.config.partition.name == "dirichlet" else "two labels"
    return f"{_DATA[run.config.data.name]} {split} {_method(run.config)}"


def _byzfl(run: StoredRun) -> str:
    rule = "trimmed mean" if "trimmed_mean" in str(run.config.aggregator) else "geometric median"
    return f"{rule} gamma={run.config.partition.arguments['gamma']:g} f={run.config.num_byzantine}"


def _fednova(run: StoredRun) -> str:
    rho = run.config.algorithm.arguments.get("rho", 0.0)
    optimizer = run.config.local_optimizer
    kept = rho or (optimizer.arguments.get("momentum", 0.0) if optimizer else 0.0)
    epochs = "2" if run.config.local_epochs == 2 else "2 to 5"
    return f"{_method(run.config)}{' momentum' if kept else ''} epochs={epochs}"


def _nvflare(run: StoredRun) -> str:
    server = run.config.aggregator.arguments.get("server_optimizer")
    method = "server momentum" if server else _method(run.config)
    return f"{method} beta={run.config.partition.arguments['beta']:g}"


def _split(run: StoredRun) -> str:
    return _SPLITS[run.config.partition.name]


def _rounds(run: StoredRun) -> list[float]:
    reached = np.asarray(run.history["test_accuracy"]) >= REACHED
    if not reached.any():
        raise ValueError(f"{run.folder}: has not reached {REACHED:.0%} in {run.history['round'][-1]} rounds")
    return [run.history["round"][reached.argmax()]]


class Reader(NamedTuple):
    """How the runs of a sweep become figures of a table.

    Attributes:
      table: of :func:`peers.theirs`.
      setting: of a run.
      figures: of a run: the one of the table; for ByzFL's the accuracy at each evaluation, see :func:`peers.worst`.
    """

    table: str
    setting: Callable[[StoredRun], str]
    figures: Callable[[StoredRun], list[float]]


def _best(run: StoredRun) -> list[float]:
    return [_accuracies(run).max()]


def _end(run: StoredRun) -> list[float]:
    return [_accuracies(run)[-1]]


READERS: dict[str, list[Reader]] = {
    "bucketing": [
        Reader("bucketing", lambda run: str(setting_of(run.config)), lambda run: [_accuracies(run)[-LAST:].mean()])
    ],
    "byzfl": [Reader("byzfl", _byzfl, lambda run: list(_accuracies(run)))],
    "flower_niid": [Reader("flower", _niid, _best)],
    "niid_cifar10": [Reader("flower", _niid, _best), Reader("niid_bench", _niid, _end)],
    "fedlab": [Reader("fedlab", _split, _rounds)],
    "mcmahan": [Reader("mcmahan", _split, _rounds)],
    "fednova": [Reader("fednova", _fednova, _end)],
    "nvflare": [Reader("nvflare", _nvflare, _best)],
}
"""By the name of a configuration, or how it begins."""


class Measured(NamedTuple):
    """What tells one run from another.

    Attributes:
      table: of :func:`peers.theirs`.
      setting: in the words of the table.
      attack: its name; empty without one.
      seed: of the run.
    """

    table: str
    setting: str
    attack: str
    seed: int


Runs = dict[Measured, list[float]]
"""The figures of each run, as a :class:`Reader` takes them."""


def _configuration(folder: Path) -> str:
    """The name in :data:`READERS` that a sweep in a folder begins with.

    Raises:
      ValueError: there is none.
    """
    sweep = yaml.safe_load((folder / sweep_folder.CONFIG).read_text(encoding="utf-8"))["name"]
    for name in READERS:
        if sweep.startswith(name):
            return name
    raise ValueError(f"{folder}: is a sweep {sweep!r}; must be one of configs/peers, {', '.join(READERS)}")


def _conditions(config: Config) -> dict[str, Any]:
    """What a run was run under, but for its seed and for what changes no figure."""
    free = NO_RESULT - {"stop_when", "patience"}
    return {key: value for key, value in flatten(config).items() if key not in free}


@functools.cache
def _cells(name: str) -> list[dict[str, Any]]:
    """The conditions of the cells of a table."""
    grids = [
        load_grid(path, overrides)
        for path in sorted(CONFIGS.glob(f"{name}*.yaml"))
        for overrides in ((), FURTHER.get(path.stem, ()))
    ]
    return [_conditions(point.config) for grid in grids for point in grid.points]


def check_settings(folder: Path) -> None:
    """Refuses runs that are, but for the seed, no cell of the configurations of their table.

    Raises:
      ValueError: naming the folder of the first.
    """
    name = _configuration(folder)
    for run in sweep_folder.finished(folder):
        if _conditions(run.config) not in _cells(name):
            raise ValueError(f"{run.folder}: is no cell of configs/peers/{name}*.yaml, whatever the seed")


def measured(folders: Iterable[Path]) -> Runs:
    """The runs in the folders of sweeps that are at their end.

    Raises:
      ValueError: naming the folder of a run that has other settings than another one of the same setting, apart from
        the seed and whom a mimic copies; or one without the figure of its table.
    """
    found: Runs = {}
    alike: dict[Measured, StoredRun] = {}
    for folder in folders:
        readers = READERS[_configuration(folder)]
        for run in sweep_folder.finished(folder):
            attack = run.config.attack.name if run.config.attack else ""
            for reader in readers:
                about = Measured(reader.table, reader.setting(run), attack, run.config.seed)
                first = alike.setdefault(about._replace(seed=0), run)
                own, other = (_conditions(one.config) | {"attack.target": None} for one in (run, first))
                if own != other:
                    keys = ", ".join(sorted(key for key in own | other if own.get(key) != other.get(key)))
                    raise ValueError(f"{run.folder}: {keys}: must be as in {first.folder}, to be seeds of one setting")
                found[about] = [round(float(value), 3) for value in reader.figures(run)]
    return found


def kept() -> Runs:
    """The runs that ``--page`` wrote down."""
    with RUNS.open(encoding="utf-8") as lines:
        return {
            Measured(row["table"], row["setting"], row["attack"], int(row["seed"])): [
                float(value) for value in row["figures"].split()
            ]
            for row in csv.DictReader(lines)
        }


def keep(runs: Runs) -> None:
    """Writes the runs down, in order."""
    with RUNS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Measured._fields, "figures"])
        writer.writerows([*about, " ".join(f"{value:g}" for value in runs[about])] for about in sorted(runs))
