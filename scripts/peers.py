"""Sets the sweeps of configs/peers beside the figures that their authors have printed.

    python scripts/peers.py runs/bucketing_* runs/byzfl runs/fedlab

Prints a table of each peer. ``--page`` adds the runs to those of docs/results/peers_runs.csv, in place of earlier ones
of the same setting, attack and seed, and writes the tables of all of them into docs/results/peers.md, and every setting
into docs/results/peers_settings.csv; it refuses a run that is no cell of its configuration. Figures are means over
the seeds with 95 % intervals (Student's t); two overlap where their difference is at most the sum of the half widths.
A figure that is printed without a deviation is taken for the mean of its runs (one, where their number is not said),
which vary as ours do: it overlaps if it is in the prediction interval, widened by half its last digit. So is a single
run of ours taken for one that varies as theirs. Published figures are in docs/results/bucketing_logs.csv, run by run,
and in peers_published.csv.
"""

import csv
import functools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
import yaml
from scipy import stats

from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.intervals import Estimate, estimate
from fedjax_drag.experiment.run.results import StoredRun
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.experiment.sweep.summary_page import markdown

CONFIGS = Path(__file__).parents[1] / "configs" / "peers"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
LOGS, PUBLISHED = RESULTS / "bucketing_logs.csv", RESULTS / "peers_published.csv"
PAGE, SETTINGS, RUNS = RESULTS / "peers.md", RESULTS / "peers_settings.csv", RESULTS / "peers_runs.csv"
LAST = 5
"""Evaluations whose mean is a figure of bucketing."""

_RULES = {"fedavg": "avg", "krum": "krum", "median": "cm", "rfa": "rfa", "centered_clipping": "cp"}
_ATTACKS = {"label_flip": "LF", "sign_flip": "BF", "ipm": "IPM", "alie": "ALIE", "mimic": "mimic"}
_SHOWN = {"avg": "mean", "krum": "Krum", "cm": "median", "rfa": "RFA", "cp": "clipping"}
_METHODS = {"scaffold": "SCAFFOLD", "fednova": "FedNova"}
_SPLITS = {"iid": "IID", "shards": "two shards"}
_DATA = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}

BySeed = dict[int, float]
"""Figures of a setting."""


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


def logged() -> dict[Setting, BySeed]:
    """Bucketing's figures; of mimicry without momentum among clients that differ, which they ran twice, the first."""
    found: dict[Setting, BySeed] = defaultdict(dict)
    with LOGS.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            *about, buckets, seed = row["setting"].split("_")
            if row["experiment"] == "exp2":
                setting = Setting(about[0], "mimic", 0.0, about[1] == "True", int(buckets[1:]))
            else:
                setting = Setting(about[0], about[1], float(about[2]), True, int(buckets[1:]))
            found[setting].setdefault(int(seed.removeprefix("seed")), float(row["mean_of_last_5"]))
    return found


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


class Published(NamedTuple):
    """A printed figure.

    Attributes:
      estimate: its half width is NaN where no deviation is printed.
      runs: of which it is the mean; 1 where that is not said.
    """

    estimate: Estimate
    runs: int


def theirs() -> dict[str, dict[str, Published]]:
    """Published figures, by table and setting."""
    found: dict[str, dict[str, Published]] = defaultdict(dict)
    for setting, by_seed in logged().items():
        found["bucketing"][str(setting)] = Published(estimate(np.array(list(by_seed.values()))), len(by_seed))
    with PUBLISHED.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            half, runs = math.nan, int(row["runs"] or 1)
            if row["deviation"]:
                half = float(stats.t.ppf(0.975, runs - 1)) * float(row["deviation"]) / math.sqrt(runs)
            found[row["table"]][row["setting"]] = Published(Estimate(float(row["value"]), half), runs)
    return found


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
    return [run.history["round"][np.argmax(np.asarray(run.history["test_accuracy"]) >= run.config.stop_when)]]


class Reader(NamedTuple):
    """How the runs of a sweep become figures of a table.

    Attributes:
      table: of :func:`theirs`.
      setting: of a run.
      figures: of a run: the one of the table; for ByzFL's the accuracy at each evaluation, see :func:`worst`.
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
      table: of :func:`theirs`.
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


@functools.cache
def _cells(name: str) -> list[dict[str, Any]]:
    """The configurations of a table, cell by cell, all with seed 0."""
    points = [point for path in sorted(CONFIGS.glob(f"{name}*.yaml")) for point in load_grid(path).points]
    return [point.config.to_mapping() | {"seed": 0} for point in points]


def check_settings(folder: Path) -> None:
    """Refuses runs that are, but for the seed, no cell of the configurations of their table.

    Raises:
      ValueError: naming the folder of the first.
    """
    name = _configuration(folder)
    for run in sweep_folder.finished(folder):
        if run.config.to_mapping() | {"seed": 0} not in _cells(name):
            raise ValueError(f"{run.folder}: is no cell of configs/peers/{name}*.yaml, whatever the seed")


def measured(folders: Iterable[Path]) -> Runs:
    """The runs in the folders of sweeps that are at their end."""
    found: Runs = {}
    for folder in folders:
        readers = READERS[_configuration(folder)]
        for run in sweep_folder.finished(folder):
            attack = run.config.attack.name if run.config.attack else ""
            for reader in readers:
                about = Measured(reader.table, reader.setting(run), attack, run.config.seed)
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


def by_setting(runs: Runs) -> dict[str, dict[str, BySeed]]:
    """Our figures, by table and setting; of ByzFL where a setting has runs under all three attacks."""
    found: dict[str, dict[str, BySeed]] = defaultdict(lambda: defaultdict(dict))
    curves: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    for (table, setting, attack, seed), figures in runs.items():
        if table == "byzfl":
            curves[setting][attack][seed] = figures
        else:
            (found[table][setting][seed],) = figures
    for setting, by_attack in curves.items():
        if len(by_attack) == 3:
            found["byzfl"][setting] = worst(by_attack)
    return found


def worst(by_attack: dict[str, dict[int, list[float]]]) -> BySeed:
    """ByzFL's figure: the best evaluation of the mean over the seeds, under the attack that leaves least of it."""
    means = {attack: np.mean(list(curves.values()), axis=0) for attack, curves in by_attack.items()}
    attack = min(means, key=lambda name: means[name].max())
    return {seed: curve[means[attack].argmax()] for seed, curve in by_attack[attack].items()}


def _compared(printed: Published, by_seed: BySeed, table: str) -> tuple[Estimate, str]:
    """Our figure less theirs, and whether they overlap; empty where neither is of several runs."""
    (there, runs), here = printed, estimate(np.array(list(by_seed.values())))
    difference = here.mean - there.mean
    if np.isnan(there.half):
        spread = here.half * math.sqrt(1 + len(by_seed) / runs)
        furthest = spread + (0.5 if table in ("byzfl", "fedlab", "mcmahan") else 0.05)  # half of the last digit
    elif np.isnan(here.half):
        spread = furthest = there.half * math.sqrt(1 + runs)
    else:
        spread, furthest = math.hypot(there.half, here.half), there.half + here.half
    judged = "" if np.isnan(furthest) else "yes" if abs(difference) <= furthest else "no"
    return Estimate(difference, spread), judged


def rows(published: dict[str, Published], ours: dict[str, BySeed], table: str) -> list[list[str]]:
    """A row for each setting, also of those that have not been run, and the head."""
    lines = [["setting", "theirs", "ours", "seeds", "difference", "overlap"]]
    for setting, printed in published.items():
        there = _shown(printed.estimate)
        if setting not in ours:
            lines.append([setting, there, "missing", "0", "", ""])
            continue
        here = _shown(estimate(np.array(list(ours[setting].values()))))
        difference, overlap = _compared(printed, ours[setting], table)
        lines.append([setting, there, here, str(len(ours[setting])), _shown(difference, sign="+"), overlap])
    return lines


def _shown(value: Estimate, sign: str = "") -> str:
    return f"{value.mean:{sign}.1f}" + ("" if np.isnan(value.half) else f" \N{PLUS-MINUS SIGN} {value.half:.1f}")


def count(table: list[list[str]]) -> str:
    """How many settings of a table have been run, and how many of those with an interval overlap."""
    done = [row for row in table[1:] if row[2] != "missing"]
    judged = [row for row in done if row[-1]]
    overlapping = sum(row[-1] == "yes" for row in judged)
    return f"{len(done)} of {len(table) - 1} settings run; {overlapping} of the {len(judged)} with an interval overlap."


def main(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", exists=True, file_okay=False, help="Results folders of the sweeps."),
    ],
    page: Annotated[
        bool,
        typer.Option("--page", help="Keep the runs; write all that are kept into the page and the settings' file."),
    ] = False,
) -> None:
    """Set the sweeps beside the published figures."""
    try:
        if page:
            for folder in folders:
                check_settings(folder)
        runs = measured(folders)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if page:
        runs = kept() | runs
        keep(runs)
    ours = by_setting(runs)
    tables = {name: rows(published, ours[name], name) for name, published in theirs().items()}
    if not page:
        for name, table in tables.items():
            if ours[name]:
                typer.echo(f"{name}\n\n{markdown([row for row in table if row[2] != 'missing'])}\n\n{count(table)}\n")
        return
    with SETTINGS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["table", *next(iter(tables.values()))[0]])
        writer.writerows([name, *row] for name, table in tables.items() for row in table[1:])
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        shown = [row for row in table if row[2] != "missing"]
        block = f"{count(table)}\n" + (f"\n{markdown(shown)}\n" if 1 < len(shown) <= 33 else "")
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, b=block: m[1] + b + m[2], text, flags=re.DOTALL
        )
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
