"""The runs of an arena as sweeps: of the tuning, then with fresh seeds of what was chosen."""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_drag.experiment.arena.choice import Choice, Place, Values, choose
from fedjax_drag.experiment.arena.own_code import codes
from fedjax_drag.experiment.arena.protocol import Arena, Entry, Opponent
from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.config.config import Config, slug
from fedjax_drag.experiment.config.own import as_text
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.sweep import sweep as sweeping
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import Grid, Point, load_grid
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.simulation.result import TEST, VALIDATION

TUNING, FINAL = "tuning", "final"
"""Folders of an entry: a sweep for each opponent in both."""


class EntryOutcome(NamedTuple):
    """What an entry has shown.

    Attributes:
      choices: by task.
      accuracy: on the test examples at the end of the runs, ``[tasks, opponents, seeds]``; 0 where a run failed.
      failures: what went wrong, each once.
      doubts: test runs whose accuracy is no result of learning, a line for each opponent.
    """

    choices: dict[Values, Choice]
    accuracy: np.ndarray
    failures: tuple[str, ...]
    doubts: tuple[str, ...] = ()


class Trials(NamedTuple):
    """How the runs of an arena are executed.

    Attributes:
      folder: of the arena's results; None writes nothing.
      quiet: as for a sweep.
      allow_code: whether to run code that the configurations refer to; as for a run.
      ended: is called after each sweep.
    """

    folder: Path | None = None
    quiet: bool | None = None
    allow_code: bool = False
    ended: Callable[[], Any] = lambda: None

    def play(self, arena: Arena, entry: Entry) -> EntryOutcome:
        """Tunes an entry and its attackers, then tests what they have chosen; goes on from what is in the folder.

        Args:
          arena: the protocol.
          entry: one of its entries, or another one.

        Raises:
          ValueError: a configuration is not valid; raised before anything is computed.
          KeyboardInterrupt: stopped by Ctrl-C, after what was computed has been saved.
        """
        choices, tuning_failures = self.tune(arena, entry)
        accuracy, failures, doubts = self.test(arena, entry, choices)
        return EntryOutcome(choices, accuracy, tuple(dict.fromkeys([*tuning_failures, *failures])), tuple(doubts))

    def tune(self, arena: Arena, entry: Entry) -> tuple[dict[Values, Choice], list[str]]:
        """What entry and attackers choose in each task, and what went wrong."""
        grids = self.grids(arena, entry)
        accuracy: dict[Place, float] = {}
        failures: list[str] = []
        for opponent, grid in zip(arena.opponents, grids, strict=True):
            cells = self._run(arena, entry, TUNING, opponent, grid)
            accuracy |= _mean_over_seeds(arena, entry, opponent, cells)
            failures += _failures(cells)
        return choose(accuracy), failures

    def test(
        self, arena: Arena, entry: Entry, choices: Mapping[Values, Choice]
    ) -> tuple[Float[np.ndarray, "tasks opponents seeds"], list[str], list[str]]:
        """Test accuracies of what was chosen, with fresh seeds; what went wrong, and what is to be doubted."""
        accuracy = np.zeros((len(choices), len(arena.opponents), len(arena.seeds)))
        failures: list[str] = []
        doubts: list[str] = []
        for column, opponent in enumerate(arena.opponents):
            grid = _chosen(arena, entry, opponent, choices, self._grid(arena, entry, opponent, arena.seeds))
            cells = self._run(arena, entry, FINAL, opponent, grid)
            failures += _failures(cells)
            doubts += _doubts(opponent, cells)
            for cell in cells:
                task = list(choices).index(_values(arena.tasks, cell.values))
                accuracy[task, column, arena.seeds.index(cell.values["seed"])] = _final(cell, TEST)
        return accuracy, failures, doubts

    def check(self, arena: Arena, entry: Entry) -> Grid:
        """The runs of the tuning of an entry without an attack.

        Those against the attacks are checked with the first value of every task and setting, whose others are checked
        here: an attack is refused for what it is, or for its strength.

        Raises:
          ValueError: a configuration is not valid.
        """
        one_task = dataclasses.replace(arena, tasks={axis: values[:1] for axis, values in arena.tasks.items()})
        one = dataclasses.replace(entry, settings={axis: values[:1] for axis, values in entry.settings.items()})
        for opponent in arena.opponents[1:]:
            self._grid(one_task, one, opponent, arena.tuning_seeds[:1])
        return self._grid(arena, entry, arena.opponents[0], arena.tuning_seeds)

    def grids(self, arena: Arena, entry: Entry) -> list[Grid]:
        """The runs of the tuning of an entry, against each opponent.

        Raises:
          ValueError: a configuration is not valid.
        """
        return [self._grid(arena, entry, opponent, arena.tuning_seeds) for opponent in arena.opponents]

    def config(self, arena: Arena, entry: Entry) -> Config:
        """The configuration of one of its runs, without an attack."""
        return self._grid(arena, entry, arena.opponents[0], arena.tuning_seeds).points[0].config

    def seconds(self, arena: Arena, entry: Entry) -> float:
        """What all runs of an entry in the folder took together, those before an interruption included."""
        found = self.folder and self.folder / folder_of(arena, entry)
        summaries = found.glob(f"*/*/{sweep_folder.CELLS}/*/{results.SUMMARY}") if found else ()
        return sum(float(results.read_summary(path.parent)["seconds"] or 0.0) for path in summaries)

    def _grid(self, arena: Arena, entry: Entry, opponent: Opponent, seeds: Sequence[int]) -> Grid:
        """All runs of an entry against an opponent."""
        _check_apart(arena, entry, opponent)
        axes = {**entry.settings, **opponent.strengths, **arena.tasks, "seed": list(seeds)}
        name = {"name": f"{entry.label} against {opponent.label}"}
        mapping = {**arena.base, **entry.method, "attack": opponent.attack, **name, "axes": axes}
        return load_grid(mapping, code=Code(self.allow_code))

    def _run(self, arena: Arena, entry: Entry, phase: str, opponent: Opponent, grid: Grid) -> Sequence[Cell]:
        folder = self.folder and self.folder / folder_of(arena, entry) / phase / slug(opponent.label)
        begun = folder is not None and (folder / sweep_folder.CONFIG).is_file()
        cells = sweeping.sweep(grid, out=folder, resume=begun, quiet=self.quiet).cells
        self.ended()
        return cells


def _check_apart(arena: Arena, entry: Entry, opponent: Opponent) -> None:
    """Refuses an axis of two of them, which would be taken from one alone."""
    settings, strengths = f"entries.{entry.label}.settings", f"attacks.{opponent.label}.strengths"
    written = {settings: entry.settings, strengths: opponent.strengths, "tasks": arena.tasks}
    for (one, axes), (other, others) in itertools.combinations(written.items(), 2):
        for axis in axes:
            if axis in others:
                raise ValueError(f"{axis}: {one} and {other} both set it; leave out one of them")


def folder_of(arena: Arena, entry: Entry) -> str:
    """The folder of an entry: its label, and a checksum of all on which its runs depend."""
    rest = dataclasses.replace(arena, name="", entries=(), most_settings=1)
    parts = [dataclasses.asdict(part) for part in (rest, entry)]
    content = json.dumps([*map(as_text, parts), *codes(parts)], sort_keys=True, default=str)
    return f"{slug(entry.label)}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def _chosen(arena: Arena, entry: Entry, opponent: Opponent, choices: Mapping[Values, Choice], grid: Grid) -> Grid:
    """Those runs of a grid whose setting and strength were chosen."""

    def is_chosen(point: Point) -> bool:
        choice = choices[_values(arena.tasks, point.values)]
        played = choice.setting, choice.strengths[opponent.label]
        return (_values(entry.settings, point.values), _values(opponent.strengths, point.values)) == played

    return dataclasses.replace(grid, points=tuple(filter(is_chosen, grid.points)))


def _mean_over_seeds(arena: Arena, entry: Entry, opponent: Opponent, cells: Sequence[Cell]) -> dict[Place, float]:
    """Validation accuracies at the end; the sums are exact, so that equal ones in another order are a tie."""
    by_place: dict[Place, list[float]] = {}
    for cell in cells:
        task, setting = _values(arena.tasks, cell.values), _values(entry.settings, cell.values)
        place = Place(task, setting, opponent.label, _values(opponent.strengths, cell.values))
        by_place.setdefault(place, []).append(_final(cell, VALIDATION))
    return {place: math.fsum(values) / len(values) for place, values in by_place.items()}


def _final(cell: Cell, metric: str) -> float:
    """An accuracy at the end of a run; 0 of one that failed. A model that is not finite predicts the first class."""
    if metric not in cell.history:
        return 0.0
    return float(np.nan_to_num(np.float32(cell.history[metric][-1])))  # in float32 also where it was read back


def _failures(cells: Sequence[Cell]) -> list[str]:
    return [cell.message for cell in cells if cell.status == "failed"]


def _doubts(opponent: Opponent, cells: Sequence[Cell]) -> list[str]:
    """How many models against it are not finite, and in how many runs the last messages were all rejected."""
    kinds = {"not finite": "diverged", "last messages all rejected": "done"}
    counts = {what: sum(c.status == status and bool(c.message) for c in cells) for what, status in kinds.items()}
    return [f"{opponent.label}: {number} of {len(cells)} runs {what}" for what, number in counts.items() if number]


def _values(axes: Mapping[str, Any], values: Mapping[str, Any]) -> Values:
    return tuple(values[axis] for axis in axes)
