"""What a figure shows, before it is drawn; without matplotlib, which takes a second to import."""

import dataclasses

import numpy as np


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


@dataclasses.dataclass(frozen=True)
class Contents:
    """Lines and texts of a figure.

    Attributes:
      lines: from the top of the legend; none before the first evaluation.
      metric: a column of the histories.
      axis: its name at the vertical axis.
      headline: title of the figure.
      shared: what all runs have in common, in the line below.
    """

    lines: list[Curve]
    metric: str
    axis: str
    headline: str
    shared: str
