"""The runs of an arena as sweeps: of the tuning, then with fresh seeds of what was chosen."""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from fedjax_drag.experiment.arena.own_code import code_of, codes
from fedjax_drag.experiment.arena.protocol import Arena, Entry, Opponent
from fedjax_drag.experiment.arena.scores import KEPT, of_failed
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.config.config import Config, slug
from fedjax_drag.experiment.config.own import as_text
from fedjax_drag.experiment.plain import finite
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep import sweep as sweeping
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import Grid, load_grid
from fedjax_drag.experiment.sweep.outcome_table import Cell, exact_mean
from fedjax_drag.metrics import accuracy
from fedjax_drag.simulation.criterion import ACCURACY, VALIDATION, Criterion

TUNING, FINAL = "tuning", "final"
"""Folders of an entry: a sweep for each opponent in both."""

SUCCESS = "attack_success_rate"


class Choice(NamedTuple):
    """What is played in a task, by validation figures alone.

    Attributes:
      setting: number of the entry's setting with the best worst case.
      strengths: of each opponent, the number of the strength that hurts that setting most, then those of the backdoors.
      worst_case: validation figure of the setting, the worst over opponents and strengths; NaN if there is none.
    """

    setting: int
    strengths: list[int]
    worst_case: float


class EntryOutcome(NamedTuple):
    """What an entry has shown.

    Attributes:
      choices: for each task its values, the setting chosen, the opponents' strengths and the validation accuracy.
      accuracy: on the test examples at the end of the runs, or another criterion, ``[tasks, opponents, seeds]``; where
        a run failed or its model is not finite,
        :func:`~fedjax_drag.experiment.arena.scores.of_failed`.
      failures: what went wrong, each once.
      doubts: test runs whose model is not finite or stands still, a line for each opponent.
      backdoors: what each has reached, as in a row of the standing.
    """

    choices: list[dict[str, Any]]
    accuracy: np.ndarray
    failures: Sequence[str] = ()
    doubts: Sequence[str] = ()
    backdoors: Mapping[str, dict[str, list[list[float]]]] = MappingProxyType({})


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
        choices, failures = self.tune(arena, entry)
        settings, tasks = [choice.setting for choice in choices], np.arange(len(choices))
        by = criterion_of(self.config(arena, entry))
        records: list[dict[str, Any]] = [{"task": {}, "setting": {}, "strengths": {}} for _ in choices]
        accuracy, doubts, backdoors = [], [], {}
        for column, opponent in enumerate((*arena.opponents, *arena.backdoors)):
            strengths = [choice.strengths[column] for choice in choices]
            points, cells = self._cells(arena, entry, FINAL, opponent, (settings, strengths, tasks))
            if opponent in arena.backdoors:
                read = {"success": (SUCCESS, 0, 1.0), "after": (SUCCESS, -1, 1.0), "accuracy": (ACCURACY.test, 0, 0.0)}
                backdoors[opponent.label] = {name: _figures(cells, *x).tolist() for name, x in read.items()}
            else:
                accuracy.append(_figures(cells, by.column, -1, of_failed(by)))
            failures += _failures(cells)
            doubts += _doubts(opponent, cells)
            for record, choice, (point, *_) in zip(records, choices, points, strict=True):
                record["task"], record["setting"] = (_of(axes, point.values) for axes in (arena.tasks, entry.settings))
                record["strengths"][opponent.label] = _of(opponent.strengths, point.values)
                record[by._replace(on=VALIDATION).column] = choice.worst_case
        return EntryOutcome(records, np.stack(accuracy, axis=1), list(dict.fromkeys(failures)), doubts, backdoors)

    def tune(self, arena: Arena, entry: Entry) -> tuple[list[Choice], list[str]]:
        """What entry and attackers choose in each task, and what went wrong; backdoors meet chosen settings alone."""
        accuracy, failures, by = [], [], criterion_of(self.config(arena, entry))
        for opponent in arena.opponents:
            _, cells = self._cells(arena, entry, TUNING, opponent)
            accuracy.append(mean_over_seeds(cells, by))
            failures += _failures(cells)
        choices = choose(accuracy, by)
        settings, tasks = [choice.setting for choice in choices], np.arange(len(choices))
        clean = accuracy[0][settings, 0, tasks]
        for backdoor in arena.backdoors:
            _, cells = self._cells(arena, entry, TUNING, backdoor, (settings, slice(None), tasks))
            success, kept = (
                _figures(cells, f"{VALIDATION}_{name}", 0, 0.0).mean(axis=-1) for name in (SUCCESS, ACCURACY.name)
            )
            failures += _failures(cells)
            for choice, strength in zip(choices, strongest(success, kept, clean), strict=True):
                choice.strengths.append(strength)
        return choices, failures

    def check(self, arena: Arena, entry: Entry) -> Grid:
        """The runs of the tuning of an entry without an attack.

        Those against the attacks are checked with the first value of every task and setting, whose others are checked
        here: an attack is refused for what it is, or for its strength.

        Raises:
          ValueError: a configuration is not valid.
        """
        one_task = dataclasses.replace(arena, tasks={axis: values[:1] for axis, values in arena.tasks.items()})
        one = dataclasses.replace(entry, settings={axis: values[:1] for axis, values in entry.settings.items()})
        for opponent in (*arena.opponents[1:], *arena.backdoors):
            self.grid(one_task, one, opponent, arena.tuning_seeds[:1])
        grid = self.grid(arena, entry, arena.opponents[0], arena.tuning_seeds)
        if len(compared := {criterion_of(point.config) for point in grid.points}) > 1:
            names = " and ".join(sorted(by.name for by in compared))
            raise ValueError(f"tasks: are compared by {names}; must be by the same metric")
        return grid

    def check_backdoors(self, arena: Arena) -> None:
        """Builds each backdoor with the data and the first entry.

        Raises:
          ValueError: an attack has no goal or does not stop before the last round, or no accuracies are compared.
        """
        for backdoor in arena.backdoors:
            config = self.grid(arena, arena.entries[0], backdoor, arena.tuning_seeds[:1]).points[0].config
            asked = build.settings(config, Federations().split(config))
            if asked.criterion.name != ACCURACY.name:
                raise ValueError(f"backdoors: are measured at an accuracy, not {asked.criterion.name}; leave them out")
            if not (asked.attack and asked.attack.is_targeted and backdoor.attack["stop"] < config.rounds):
                needed = f"must have a goal, as backdoor, and a stop before the last of {config.rounds} rounds"
                raise ValueError(f"backdoors.{backdoor.label}.attack={backdoor.attack!r}: {needed}")

    def config(self, arena: Arena, entry: Entry) -> Config:
        """The configuration of one of its runs, without an attack."""
        return self.grid(arena, entry, arena.opponents[0], arena.tuning_seeds[:1]).points[0].config

    def seconds(self, arena: Arena, entry: Entry) -> float:
        """What all runs of an entry in the folder took together, those before an interruption included."""
        found = self._place(arena, entry)
        summaries = found.glob(f"*/*/{sweep_folder.CELLS}/*/{results.SUMMARY}") if found else ()
        return sum(finite(results.read_summary(path.parent).get("seconds")) or 0.0 for path in summaries)

    def grid(self, arena: Arena, entry: Entry, opponent: Opponent, seeds: Sequence[int]) -> Grid:
        """All runs of an entry against an opponent: by setting, strength, task and seed, the last changing fastest.

        Raises:
          ValueError: a configuration is not valid, or two of them set the same key.
        """
        is_backdoor = opponent in arena.backdoors
        kind, evaluated = ("backdoors", {"eval_every": opponent.attack["stop"]}) if is_backdoor else ("attacks", {})
        settings, strengths = f"entries.{entry.label}.settings", f"{kind}.{opponent.label}.strengths"
        written = {settings: entry.settings, strengths: opponent.strengths, "tasks": arena.tasks}
        for (one, axes), (other, others) in itertools.combinations(written.items(), 2):
            for axis in axes:
                if axis in others:
                    raise ValueError(f"{axis}: {one} and {other} both set it; leave out one of them")
        axes = {**entry.settings, **opponent.strengths, **arena.tasks, "seed": list(seeds)}
        name = {"name": f"{entry.label} against {opponent.label}"}
        mapping = {**arena.base, **evaluated, **entry.method, "attack": opponent.attack, **name, "axes": axes}
        return load_grid(mapping, code=Code(self.allow_code))

    def _place(self, arena: Arena, entry: Entry) -> Path | None:
        """The folder of an entry with this protocol and this code."""
        return self.folder and self.folder / f"{key_of(arena, entry)}-{code_of(entry.method)}"

    def _cells(
        self, arena: Arena, entry: Entry, phase: str, opponent: Opponent, which: Any = ()
    ) -> tuple[Shaped[np.ndarray, "..."], Shaped[np.ndarray, "..."]]:
        """The points and the cells of some runs of an entry against an opponent.

        Args:
          arena: the protocol.
          entry: of it.
          phase: of which the seeds are.
          opponent: of it.
          which: index of an array of settings, strengths, tasks and seeds; default all.
        """
        grid = self.grid(arena, entry, opponent, arena.tuning_seeds if phase == TUNING else arena.seeds)
        sizes = [math.prod(map(len, axes.values())) for axes in (entry.settings, opponent.strengths, arena.tasks)]
        points = np.array(grid.points, object).reshape(*sizes, -1)[which]
        cells = self._run(arena, entry, phase, opponent, dataclasses.replace(grid, points=(*points.flat,)))
        return points, np.array(cells, object).reshape(points.shape)

    def _run(self, arena: Arena, entry: Entry, phase: str, opponent: Opponent, grid: Grid) -> Sequence[Cell]:
        place = self._place(arena, entry)
        folder = place and place / phase / slug(opponent.label)
        cells = sweeping.sweep(grid, out=folder, resume=folder is not None, quiet=self.quiet).cells
        self.ended()
        return cells


def choose(accuracy: Sequence[Float[np.ndarray, "settings strengths tasks"]], by: Criterion = ACCURACY) -> list[Choice]:
    """The choice in each task: ``argmax over settings of min over opponents and strengths`` of the accuracy.

    Of equal ones the first is taken, of settings and of strengths.

    Args:
      accuracy: of each opponent, validation accuracy at the end of the runs, or figures of another criterion, the mean
        over the tuning seeds.
      by: what they are figures of.
    """
    merits = [by.merits(against) for against in accuracy]
    worst = np.min([against.min(axis=1) for against in merits], axis=0)
    return [
        Choice(
            int(setting),
            [int(against[setting, :, task].argmin()) for against in merits],
            float(by.worst([by.worst(against[setting, :, task]) for against in accuracy])),
        )
        for task, setting in enumerate(worst.argmax(axis=0))
    ]


def strongest(
    success: Float[np.ndarray, "tasks strengths"],
    kept: Float[np.ndarray, "tasks strengths"],
    clean: Float[np.ndarray, " tasks"],
) -> list[int]:
    """The strength of a backdoor in each task: of those that leave :data:`KEPT` of the accuracy, the most successful.

    Where none does, the most successful; of equal ones the first.

    Args:
      success: share of the validation examples on which the attacker has its will when the attack stops.
      kept: validation accuracy then.
      clean: that without an attack, at the end.
    """
    return (success + 2 * (kept >= KEPT * clean[:, None])).argmax(axis=1).tolist()


def key_of(arena: Arena, entry: Entry) -> str:
    """An entry's label, and a checksum of all on which its runs depend but the package: protocol, entry, own code."""
    rest = dataclasses.asdict(dataclasses.replace(arena, name="", entries=(), most_settings=1))
    backdoors = rest.pop("backdoors")
    parts = [rest, dataclasses.asdict(entry), *backdoors]
    content = json.dumps([*map(as_text, parts), *codes(parts)], sort_keys=True, default=str)
    return f"{slug(entry.label)}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def mean_over_seeds(cells: Shaped[np.ndarray, "*axes seeds"], by: Criterion = ACCURACY) -> Float[np.ndarray, "*axes"]:
    """Validation figures at the end; the sums are exact, so that equal ones in another order are a tie."""
    figures = _figures(cells, by._replace(on=VALIDATION).column, -1, of_failed(by))
    return np.apply_along_axis(exact_mean, -1, figures)


def criterion_of(config: Config) -> Criterion:
    """By what a run's figures are compared, as the run itself chooses its rounds.

    Raises:
      ValueError: ``metric`` is none of its metrics, or not given where the run may have no accuracy.
    """
    if config.metrics is None and config.metric is None and config.loss.name != "cross_entropy":
        raise ValueError("base.metric=None: must be given beside another loss than cross_entropy, as 'loss'")
    metrics = build.part(config, "metrics")
    return Criterion.of([accuracy()] if metrics is None else metrics, config.metric)


def _figures(
    cells: Shaped[np.ndarray, "*axes"], column: str, evaluation: int, failed: float
) -> Float[np.ndarray, "*axes"]:
    """Figures at an evaluation of the runs; ``failed`` of one that failed, and of a model that is not finite."""
    values = [cell.history[column][evaluation] if cell.status == "done" else np.nan for cell in cells.flat]
    figures = np.array(values, np.float32)  # as in memory
    return np.where(np.isfinite(figures), figures, failed).astype(float).reshape(cells.shape)


def _failures(cells: Shaped[np.ndarray, "*axes"]) -> list[str]:
    return [cell.message for cell in cells.flat if cell.status == "failed"]


def _doubts(opponent: Opponent, cells: Shaped[np.ndarray, "*axes"]) -> list[str]:
    """How many models against it are not finite, and in how many runs the last messages were all rejected."""
    kinds = {"not finite": "diverged", "last messages all rejected": "done"}
    counts = {what: sum(c.status == status and bool(c.message) for c in cells.flat) for what, status in kinds.items()}
    return [f"{opponent.label}: {number} of {cells.size} runs {what}" for what, number in counts.items() if number]


def _of(axes: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {axis: values[axis] for axis in axes}
