"""What an arena has found, as plain values: the rows of its entries."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.experiment.arena.scores import Score, score
from fedjax_drag.experiment.build.own_parts import is_own
from fedjax_drag.experiment.config.own import texts

SHIPPED = Path(__file__).parent / "standings"
"""Standings that come with the package, as ``NAME.json``."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What an entry has shown; all of it plain values.

    Attributes:
      label: of the entry.
      method: keys of a run's configuration.
      settings: values among which it was tuned.
      needs: what it must know, in words.
      choices: for each task its values, the setting chosen, the attackers' strengths and the validation accuracy.
      accuracy: on the test examples, by task, opponent and seed.
      failures: messages of runs that failed.
      seconds: that its runs took.
      key: equal for rows whose runs are the same.
      passes: what the server's side of the method moves in a round, in multiples of the deltas; None if unknown.
      played: the day, as ``2026-11-25``; empty in the files of older versions.
      package: the version of this package that played it; empty in the files of older versions.
    """

    label: str
    method: dict[str, Any]
    settings: dict[str, list[Any]]
    needs: list[str]
    choices: list[dict[str, Any]]
    accuracy: list[list[list[float]]]
    failures: list[str]
    seconds: float
    key: str
    passes: float | None = None
    played: str = ""
    package: str = ""

    @property
    def knowledge(self) -> str:
        """What it must know, as one text."""
        return ", ".join(self.needs) or "nothing"

    @property
    def is_own(self) -> bool:
        """Whether it is of a user's own parts: Python objects, or code that a configuration refers to."""
        return any(is_own(name) for name in texts(self.method))


@dataclasses.dataclass(frozen=True)
class Record:
    """Rows of entries that have played by the same protocol.

    Attributes:
      name: of the arena.
      version: of its protocol.
      tasks: a name for each.
      opponents: labels, that of the federation without an attack first.
      seeds: of the test runs.
      rows: by label.
      protocol: as :func:`~fedjax_drag.experiment.arena.protocol.load_arena` reads it, without the entries; None in the
        files of older versions.
    """

    name: str
    version: int
    tasks: list[str]
    opponents: list[str]
    seeds: list[int]
    rows: dict[str, Row]
    protocol: dict[str, Any] | None = None

    def scores(self, among: Iterable[str] | None = None) -> dict[str, Score]:
        """The figures of the entries, the best first.

        Args:
          among: labels of the entries that are compared; default all.
        """
        labels = self.rows if among is None else among
        return score({label: np.asarray(self.rows[label].accuracy) for label in labels})
