"""Runs as lines of a figure: one metric, its mean and its range over the runs that differ only by seed."""

import dataclasses
import json
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np

from fedjax_drag.experiment.config.config import flatten
from fedjax_drag.experiment.figures.labels import clean, distinct
from fedjax_drag.experiment.run.results import StoredRun
from fedjax_drag.simulation.criterion import common

ROUND = "round"
"""The column that is the horizontal axis unless another one is chosen."""

MOST_LETTERS = 90
"""Of a label: one line of the figure."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a figure.

    Attributes:
      label: its name.
      x: ``[E]`` where it is on the horizontal axis, mean over the runs; infinite where what is spent has no bound.
      mean: ``[E]`` over the runs, of the rounds with an evaluation in all of them.
      low: ``[E]`` minimum over the runs.
      high: ``[E]`` maximum.
      num_runs: runs behind it.
      is_cut: whether one of them goes on after it has ended, since another one has not come so far.
    """

    label: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_runs: int
    is_cut: bool = False

    @property
    def has_place(self) -> bool:
        """Whether any of it has a place on the horizontal axis."""
        return bool(np.isfinite(self.x).any())


def judged_by(runs: Sequence[StoredRun]) -> str:
    """The column of the criterion that the runs have in common, on the test examples."""
    return common(run for run in runs if run.history).test


def measured(runs: Sequence[StoredRun], metric: str, against: str = ROUND) -> list[bool]:
    """Which of the runs have evaluations of ``metric`` and of what it is drawn against.

    Raises:
      ValueError: no run has such a column, with one number for each evaluation.
    """
    columns = [{name for name in run.history if run.scalars(name) is not None} for run in runs]
    known = set[str]().union(*columns)
    for option, column, allowed in (("metric", metric, known - {ROUND}), ("against", against, known)):
        if known and column not in allowed:
            raise ValueError(f"{option}={column!r}: must be one of {', '.join(sorted(allowed))}")
    return [{metric, against} <= names for names in columns]


def curves(runs: Sequence[StoredRun], metric: str, given: Sequence[str | None], against: str = ROUND) -> list[Curve]:
    """A line for each configuration, in the order of the runs.

    Args:
      runs: those that have ``metric``.
      metric: name of a column of their histories.
      given: the label that was chosen for each run, or None; runs with different labels have lines of their own.
      against: the column on the horizontal axis; costs are added up over the rounds.
    """
    identities = [json.dumps(flatten(run.config) | {"seed": None}, sort_keys=True) for run in runs]
    chosen = {same: label for same, label in zip(identities, given, strict=True) if label is not None}
    groups: dict[tuple[str, str | None], list[StoredRun]] = {}
    for run, same, label in zip(runs, identities, given, strict=True):
        groups.setdefault((same, chosen.get(same) if label is None else label), []).append(run)
    made = distinct([group[0].config for group in groups.values()])
    return [
        _curve(clean(label or other, MOST_LETTERS), metric, against, group)
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


def _curve(label: str, metric: str, against: str, group: Sequence[StoredRun]) -> Curve:
    rounds = reduce(np.intersect1d, [run.history[ROUND] for run in group])
    if not rounds.size:
        raise ValueError(f"{str(group[-1].folder)!r}: no evaluation in a round in which the other seeds have one")
    shared = [np.isin(run.history[ROUND], rounds) for run in group]
    x, values = (
        np.stack([np.asarray(run.spent(column))[both] for run, both in zip(group, shared, strict=True)])
        for column in (against, metric)
    )
    is_cut = any(run.history[ROUND][-1] > rounds[-1] for run in group)
    return Curve(label, x.mean(0), values.mean(0), values.min(0), values.max(0), len(group), is_cut)
