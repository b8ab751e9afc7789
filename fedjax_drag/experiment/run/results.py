"""The results folder: what a run writes, and how it is read back.

``config.yaml`` (can be run again by itself), ``environment.json``, ``metrics.jsonl`` (one line per
evaluation), ``summary.json`` and ``checkpoints/``. A comparison has one such folder per label inside
its own. Files are not trusted when they are read: they are checked line by line.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.config.config import Config, slug
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.plain import finite, first, read_mapping
from fedjax_drag.experiment.run import environment, metrics_file
from fedjax_drag.experiment.run.environment import ENVIRONMENT
from fedjax_drag.experiment.run.metric_kinds import is_counted
from fedjax_drag.experiment.run.metrics_file import METRICS, History
from fedjax_drag.files import write_text
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


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run read back from its folder.

    Attributes:
      folder: its results folder.
      config: its configuration.
      history: arrays with one entry per evaluation; empty if there is no evaluation yet.
      left_out: in words, lines of ``metrics.jsonl`` that cannot be read; empty if there are none.
      figures: its ``summary.json``; empty if that is missing or damaged.
      is_whole: whether ``metrics.jsonl`` is the file that the summary is of.
      criterion: by what rounds are chosen.
    """

    folder: Path
    config: Config
    history: History
    left_out: str = ""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_whole: bool = True
    criterion: Criterion = ACCURACY

    @property
    def note(self) -> str:
        """One line about what is missing from the history; empty if nothing is."""
        if self.left_out:
            return f"{str(self.folder / METRICS)!r}: {self.left_out} from a checkpoint"
        return "" if self.history else f"{str(self.folder)!r}: no evaluation yet"

    def scalars(self, name: str) -> np.ndarray | None:
        """A quantity of which there is one number for each evaluation ``[E]``; None if it is not that, or not there."""
        found = self.history.get(name)
        return found if found is not None and found.ndim == 1 else None

    def spent(self, name: str) -> np.ndarray | None:
        """The same, added up over the rounds if it counts since the evaluation before."""
        found = self.scalars(name)
        return np.cumsum(found) if found is not None and is_counted(name) else found

    @property
    def diverged_at(self) -> int | None:
        """The first round after which its parameters are not finite; None if there is none."""
        found = finite(self.figures.get("diverged_at"))
        return None if found is None else int(found)


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
        return [run for inner in begun for run in read(inner)] or [StoredRun(folder, config, {})]
    return [stored(folder, config)]


def stored(folder: Path, config: Config) -> StoredRun:
    """What there is of a single run, which need not have begun.

    Raises:
      ValueError: ``metrics.jsonl`` is no file, or cannot be read.
    """
    history, damage, checksum = metrics_file.read(folder / METRICS)
    left_out = f"{', '.join(first(damage, 3))} left out; --resume restores them" if damage else ""
    figures = read_summary(folder)
    history = metrics_file.typed(history, figures.get("dtypes"))
    history = with_client_seconds(history, finite(figures.get("seconds_per_local_step")))
    is_whole = not damage and figures.get("metrics_crc32", checksum) == checksum  # older versions wrote none
    return StoredRun(folder, config, history, left_out, figures, is_whole, environment.read_criterion(folder))


def read_summary(folder: Path) -> dict[str, Any]:
    """What a run's ``summary.json`` says; empty if it is missing or damaged."""
    return read_mapping(folder / SUMMARY)


def figures_before(folder: Path) -> dict[str, Any]:
    """The summary of a run's last session; if that was killed, what the sessions before it took, as ``seconds``."""
    return read_summary(folder) or {"seconds": environment.read(folder).get(environment.EARLIER_SECONDS)}
