"""Methods at the setting that validation data choose for each of them, as a step size."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.build.experiment import read
from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.simulation.criterion import ACCURACY
from reproduction.judging.outcome import DIVERGED, MissingError, Outcome
from reproduction.names import percent, written
from reproduction.showing.paired import TAIL
from reproduction.targets.target import Target


class Choice(NamedTuple):
    """A method at its chosen setting.

    Attributes:
      value: the value of the tuned axis with the highest validation accuracy, the mean over the seeds.
      accuracy: test accuracy there, ``[seeds]``.
      untuned: test accuracy at the value that the paper gives all methods, ``[seeds]``.
    """

    value: Any
    accuracy: np.ndarray
    untuned: np.ndarray


def chosen(target: Target, outcome: Outcome, untuned: Any) -> dict[str, Choice]:
    """The choice of each method, by the label of its line, on the seeds for which all methods have run at all values.

    Args:
      target: whose ``tuned`` is the axis that is chosen from.
      outcome: of one panel of the target.
      untuned: the value that the paper gives all methods.

    Raises:
      MissingError: no seed has all of them, a cell has not run to the end, or has no validation accuracy.
    """
    outcome = _whole_seeds(target, outcome)
    choices = {}
    for label in outcome.labels(target.lines):
        part = outcome.at({target.lines: label})
        values = part.labels(target.tuned)
        best = max(values, key=lambda value: _levels(part.at({target.tuned: value}), "validation_accuracy").mean())
        tests = [_levels(part.at({target.tuned: value}), ACCURACY.test) for value in (best, untuned)]
        choices[label] = Choice(best, *tests)
    return choices


def _whole_seeds(target: Target, outcome: Outcome) -> Outcome:
    """The cells of the seeds that have every line at every value of the tuned axis.

    Raises:
      MissingError: no seed has.
    """
    size = len(outcome.labels(target.lines)) * len(outcome.labels(target.tuned))
    of_seeds = [outcome.at({"seed": seed}).cells for seed in outcome.labels("seed")]
    whole = tuple(cell for cells in of_seeds if len(cells) == size for cell in cells)
    if not whole:
        raise MissingError("not measured")
    return dataclasses.replace(outcome, cells=whole)


def table(target: Target, outcome: Outcome) -> list[str]:
    """Lines of a table for each panel: test accuracies before and after tuning, and the gain over the first method.

    Args:
      target: whose ``tuned`` is the axis that is chosen from, and whose configuration has the value of all methods in
        the paper; its first line is the method that others are compared to.
      outcome: of the target.

    Raises:
      MissingError: a cell has not run to the end, or has no validation accuracy.
    """
    untuned, lines = read(target.config)[target.tuned], []
    for labels in itertools.product(*(outcome.labels(axis) for axis in target.panels)):
        panel = dict(zip(target.panels, labels, strict=True))
        choices = chosen(target, outcome.at(panel), untuned)
        lines += [*_panel(panel, choices, untuned), ""]
    return lines


def _panel(panel: Mapping[str, Any], choices: Mapping[str, Choice], untuned: Any) -> list[str]:
    first = next(iter(choices.values()))
    title = ", ".join(written(axis, label) for axis, label in panel.items())
    rows = [f"| {title} | at {untuned} | chosen | test accuracy there | gain over the first |", "| --- " * 5 + "|"]
    for label, choice in sorted(choices.items(), key=lambda item: -item[1].accuracy.mean()):
        gain = "" if choice is first else _gain(choice.accuracy - first.accuracy)
        levels = [percent(float(tests.mean())) for tests in (choice.untuned, choice.accuracy)]
        rows.append(f"| {label} | {levels[0]} | {choice.value} | {levels[1]} | {gain} |")
    return rows


def _gain(differences: np.ndarray) -> str:
    mean, half = estimate(100 * differences)
    return f"{mean:+.1f} \N{PLUS-MINUS SIGN} {half:.1f}" if math.isfinite(half) else f"{mean:+.1f}"


def _levels(part: Outcome, name: str) -> np.ndarray:
    """Mean over the last evaluations of each seed; 0 for one that diverged."""
    cells = sorted(part.complete(), key=lambda cell: cell.values["seed"])
    if len(cells) < len(part.cells) or any(name not in cell.history for cell in cells):
        raise MissingError("not measured")
    levels = [0.0 if cell.status == DIVERGED else np.mean(cell.history[name][-TAIL:]) for cell in cells]
    return np.nan_to_num(levels)
