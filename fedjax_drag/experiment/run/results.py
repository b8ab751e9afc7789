"""The results folder: what a run writes, and how it is read back.

``config.yaml`` (can be run again by itself), ``environment.json``, ``metrics.jsonl`` (one line per
evaluation), ``summary.json`` and ``checkpoints/``. A comparison has one such folder per label inside
its own. Files are not trusted when they are read: they are checked line by line.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.config.config import Config, slug
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.run import environment, metrics_file
from fedjax_drag.experiment.run.environment import ENVIRONMENT
from fedjax_drag.experiment.run.metrics_file import METRICS, History
from fedjax_drag.files import read_json, write_text
from fedjax_drag.simulation.criterion import ACCURACY, Criterion
from fedjax_drag.simulation.model.initial_params import CHECKPOINTS
from fedjax_drag.simulation.result import with_client_seconds

CONFIG, SUMMARY, REPORT, LOGS = "config.yaml", "summary.json", "report.html", "logs"

SWEEP, CELLS, STANDING = "sweep.yaml", "cells", "arena.json"
"""By which the folder of a sweep is known, with the folder of its runs, and that of an arena."""

FIGURES = ("accuracy.png", "curve.png")
"""The curve of a run that is judged by its accuracy, and of any other."""

DAMAGED_CHECKPOINTS = "checkpoints.damaged"
"""Where checkpoints that cannot be read are set aside."""

FILES = (CONFIG, ENVIRONMENT, METRICS, SUMMARY, *FIGURES)
WRITTEN = (*FILES, CHECKPOINTS)
"""Everything that a run writes into its folder, beside its lock and what it sets aside."""

SUMMARY_KEYS = ("rounds", "seconds", "interrupted")
"""What every ``summary.json`` has, beside the final and the best value of the run's criterion."""


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run read back from its folder.

    Attributes:
      folder: its results folder.
      config: its configuration.
      history: arrays with one entry per evaluation; empty if there is no evaluation yet.
      note: one line about what is missing from the history; empty if nothing is.
      criterion: by what rounds are chosen.
    """

    folder: Path
    config: Config
    history: History
    note: str = ""
    criterion: Criterion = ACCURACY


def begin(folder: Path, config: Config, resumed: bool = False, **facts: Any) -> None:
    """Makes the folder with its ``config.yaml`` and its ``environment.json``, see :func:`environment.write`."""
    write_config(folder, config)
    environment.write(folder, config, resumed, **facts)


def write_config(folder: Path, config: Config) -> None:
    """Makes the folder with its ``config.yaml``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, written(config.to_mapping()))


def read(folder: Path) -> list[StoredRun]:
    """Reads a run, or the runs of a comparison in the order of its configuration.

    Raises:
      FileNotFoundError: ``folder`` does not exist or is not that of a run.
      ValueError: its configuration is not valid.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such results folder")
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{str(folder)!r}: not the results folder of a run: it has no {CONFIG}")
    config = load(folder / CONFIG)
    labels = [slug(label) for label in config.compare or {}]
    if labels:
        begun = [folder / label for label in labels if (folder / label / CONFIG).is_file()]
        return [run for inner in begun for run in read(inner)] or [StoredRun(folder, config, {}, _note(folder, {}, ()))]
    history, damage = metrics_file.read(folder / METRICS)
    with contextlib.suppress(OSError, ValueError):  # not there yet, or damaged
        figures = read_summary(folder)
        history = metrics_file.typed(history, figures.get("dtypes"))
        history = with_client_seconds(history, figures.get("seconds_per_local_step"))
    return [StoredRun(folder, config, history, _note(folder, history, damage), environment.read_criterion(folder))]


def _note(folder: Path, history: History, damage: Sequence[str]) -> str:
    if damage:
        left_out = f"{metrics_file.listed(damage)} left out; --resume restores them from a checkpoint"
        return f"{str(folder / METRICS)!r}: {left_out}"
    return "" if history else f"{str(folder)!r}: no evaluation yet"


def read_summary(folder: Path) -> dict[str, Any]:
    """Reads a run's ``summary.json``.

    Raises:
      OSError: there is none.
      ValueError: it is damaged.
    """
    path = folder / SUMMARY
    try:
        summary = read_json(path)
    except ValueError:
        summary = None
    if not isinstance(summary, dict) or any(key not in summary for key in SUMMARY_KEYS):
        raise ValueError(f"{str(path)!r}: damaged; --resume writes it again")
    return summary


def figures_before(folder: Path) -> dict[str, Any]:
    """The summary of a run's last session; if that was killed, what the sessions before it took, as ``seconds``."""
    try:
        return read_summary(folder)
    except (OSError, ValueError):  # missing, or damaged
        return {"seconds": environment.read(folder).get(environment.EARLIER_SECONDS)}
