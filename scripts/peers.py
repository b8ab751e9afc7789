"""Sets the runs of configs/peers/bucketing_*.yaml beside the logs of the authors of bucketing.

    python scripts/peers.py runs/bucketing_mimic* runs/bucketing_attacks runs/bucketing_momentum

Both are the mean of the last five evaluations in %, its mean over the seeds with a 95 % interval (Student's t). The
last column says whether the intervals overlap. Their figures are in docs/results/bucketing_logs.csv.
"""

import csv
import itertools
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.summary_page import markdown

LOGS = Path(__file__).parents[1] / "docs" / "results" / "bucketing_logs.csv"
LAST = 5
"""Evaluations whose mean is a figure."""

_RULES = {"fedavg": "avg", "krum": "krum", "median": "cm", "rfa": "rfa", "centered_clipping": "cp"}
_ATTACKS = {"label_flip": "LF", "sign_flip": "BF", "ipm": "IPM", "alie": "ALIE", "mimic": "mimic"}

Accuracies = dict[int, float]
"""Of a setting, by seed, in percent."""


class Setting(NamedTuple):
    """What their tables tell apart, in their words.

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


def logged() -> dict[Setting, Accuracies]:
    """Their figures; of mimicry without momentum among clients that differ, which they ran twice, the first."""
    found: dict[Setting, Accuracies] = defaultdict(dict)
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
    """The setting of a run."""
    rule, bucket_size = config.aggregator, 0
    if rule.name == "bucketing":
        rule, bucket_size = rule.arguments["aggregator"], rule.arguments["bucket_size"]
    name = rule if isinstance(rule, str) else rule["name"] if isinstance(rule, dict) else rule.name
    assert config.attack is not None
    momentum = config.client.arguments.get("beta", 0.0)
    return Setting(
        _RULES[name], _ATTACKS[config.attack.name], momentum, config.partition.arguments["gamma"] == 0, bucket_size
    )


def measured(folders: Iterable[Path]) -> dict[Setting, Accuracies]:
    """Our figures, of the runs in the folders of sweeps that are at their end."""
    found: dict[Setting, Accuracies] = defaultdict(dict)
    for folder in folders:
        for run in itertools.chain.from_iterable(map(results.read, sorted((folder / sweep_folder.CELLS).iterdir()))):
            if run.history and run.history["round"][-1] == run.config.rounds:
                accuracy = 100 * np.mean(run.history["test_accuracy"][-LAST:])
                found[setting_of(run.config)][run.config.seed] = float(accuracy)
    return found


def rows(theirs: dict[Setting, Accuracies], ours: dict[Setting, Accuracies]) -> list[list[str]]:
    """A row for each setting that has been run, and the head."""
    lines = [["rule", "buckets", "attack", "momentum", "clients", "theirs", "ours", "seeds", "overlap"]]
    for setting in sorted(ours):
        (there, spread), (here, half) = (estimate(np.array(list(of[setting].values()))) for of in (theirs, ours))
        overlap = "" if np.isnan(half) else "yes" if abs(there - here) <= spread + half else "no"
        shown = [setting.rule, str(setting.bucket_size), setting.attack, f"{setting.momentum:g}"]
        shown.append("differ" if setting.noniid else "alike")
        figures = [
            f"{mean:.1f}" + (f" ± {width:.1f}" if np.isfinite(width) else "")
            for mean, width in ((there, spread), (here, half))
        ]
        lines.append([*shown, *figures, str(len(ours[setting])), overlap])
    return lines


def main(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", exists=True, file_okay=False, help="Results folders of the sweeps."),
    ],
) -> None:
    """Print the table."""
    table = rows(logged(), measured(folders))
    typer.echo(markdown(table))
    typer.echo(f"\n{sum(row[-1] == 'yes' for row in table)} of {len(table) - 1} overlap")


if __name__ == "__main__":
    typer.run(main)
