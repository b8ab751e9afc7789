"""Runs as lines of a figure: one metric, its mean and its range over the runs that differ only by seed."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_drag.experiment.config.config import Config, flatten
from fedjax_drag.experiment.figures.labels import clean, distinct
from fedjax_drag.experiment.run.results import Run

MOST_LETTERS = 90
"""Of a label: one line of the figure."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a figure.

    Attributes:
      label: its name.
      rounds: ``[E]`` rounds with an evaluation in all runs.
      mean: ``[E]`` over the runs.
      low: ``[E]`` minimum over the runs.
      high: ``[E]`` maximum.
      num_runs: runs behind it.
    """

    label: str
    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_runs: int


def measured(runs: Sequence[Run], metric: str) -> list[Run]:
    """The runs that have evaluations of ``metric``.

    Raises:
      ValueError: no run has such a metric, with one number for each evaluation.
    """
    begun = [run for run in runs if run.history]
    with_metric = [run for run in begun if metric in run.history and run.history[metric].ndim == 1]
    if begun and (not with_metric or metric == "round"):
        known = dict.fromkeys(name for run in begun for name, x in run.history.items() if x.ndim == 1)
        listed = ", ".join(sorted(name for name in known if name != "round"))
        raise ValueError(f"metric={metric!r}: must be one of {listed}")
    return with_metric


def curves(runs: Sequence[Run], metric: str, given: Sequence[str | None]) -> list[Curve]:
    """A line for each configuration, in the order of the runs.

    Args:
      runs: those that have ``metric``.
      metric: name of a column of their histories.
      given: the label that was chosen for each run, or None; runs with different labels have lines of their own.
    """
    identities = [_identity(run.config) for run in runs]
    chosen = {same: label for same, label in zip(identities, given, strict=True) if label is not None}
    groups: dict[tuple[str, str | None], list[Run]] = {}
    for run, same, label in zip(runs, identities, given, strict=True):
        groups.setdefault((same, chosen.get(same) if label is None else label), []).append(run)
    made = distinct([group[0].config for group in groups.values()])
    return [
        _curve(clean(label or other, MOST_LETTERS), metric, group)
        for ((_, label), group), other in zip(groups.items(), made, strict=True)
    ]


def given_labels(labels: Sequence[str], folders: Sequence[Path]) -> list[str | None]:
    """The chosen label of each folder, or None.

    Args:
      labels: ``LABEL=DIR``, or one for each of the other folders in their order.
      folders: results folders.

    Raises:
      ValueError: the labels without a folder are neither none nor one for each of the other folders.
    """
    named: dict[Path, str] = {}
    in_order = []
    for label in labels:
        text, _, folder = label.rpartition("=")
        if text and Path(folder) in folders:
            named[Path(folder)] = text
        else:
            in_order.append(label)
    rest = [folder for folder in folders if folder not in named]
    if in_order and len(in_order) != len(rest):
        raise ValueError(f"label={in_order[0]!r}: must be LABEL=DIR, or one for each of the {len(rest)} runs")
    following = iter(in_order)
    return [named.get(folder) or next(following, None) for folder in folders]


def _identity(config: Config) -> str:
    """Equal for configurations that differ only by seed."""
    return json.dumps({key: value for key, value in flatten(config).items() if key != "seed"}, sort_keys=True)


def _curve(label: str, metric: str, group: Sequence[Run]) -> Curve:
    rounds = group[0].history["round"]
    for run in group[1:]:
        rounds = np.intersect1d(rounds, run.history["round"])
    if not rounds.size:
        raise ValueError(f"{str(group[-1].folder)!r}: no evaluation in a round in which the other seeds have one")
    stacked = np.stack([run.history[metric][np.isin(run.history["round"], rounds)] for run in group])
    return Curve(label, rounds, stacked.mean(0), stacked.min(0), stacked.max(0), len(group))
