"""The result of an arena: a JSON file with every test accuracy, and tables that are made of it alone."""

import dataclasses
import inspect
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.experiment.arena.protocol import Arena, Entry
from fedjax_drag.experiment.arena.scores import Estimate, Score, estimate, score
from fedjax_drag.experiment.arena.trials import Outcome, Trials, folder_of
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.config.components import Component
from fedjax_drag.experiment.config.own import as_text
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep.grid import describe
from fedjax_drag.experiment.sweep.summary_page import markdown

FILE, TABLE = "arena.json", "arena.md"
"""What is written into an arena's folder, beside the folders of its entries."""

TOLD = "num_byzantine"

KNOWLEDGE = {
    TOLD: "number of attackers",
    "root_delta": "root data",
    "malicious": "who attacks",
    "num_examples": "clients' numbers of examples",
}
"""Words for the extras that a rule asks for and that are knowledge about the federation."""


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


@dataclasses.dataclass(frozen=True)
class Standing:
    """Rows of entries that have played by the same protocol.

    Attributes:
      name: of the arena.
      version: of its protocol.
      tasks: a name for each.
      opponents: labels, that of the federation without an attack first.
      seeds: of the test runs.
      rows: by label.
    """

    name: str
    version: int
    tasks: list[str]
    opponents: list[str]
    seeds: list[int]
    rows: dict[str, Row]

    def scores(self) -> dict[str, Score]:
        """The figures of the entries, the best first."""
        return score({label: np.asarray(row.accuracy) for label, row in self.rows.items()})

    def write(self, folder: Path) -> None:
        """Writes :data:`FILE` and :data:`TABLE`."""
        folder.mkdir(parents=True, exist_ok=True)
        results.write_json(folder / FILE, dataclasses.asdict(self))
        results.write_text(folder / TABLE, self.table())

    def table(self) -> str:
        """The page: ranks over all tasks, then every task by itself."""
        number = len(self.seeds)
        page = [
            f"# {self.name}, version {self.version}",
            f"Test accuracy in %, mean over {number} seeds with the 95 % interval, over {len(self.tasks)} tasks: "
            f"without an attack, with the worst of {len(self.opponents) - 1} attacks in each task and under each seed, "
            "and the mean over the attacks. Settings and the attacks' strengths were chosen on validation examples "
            "with other seeds. Ranks are by the worst case; entries share one where the interval of the paired "
            "difference contains zero.",
            markdown(self._ranks()),
        ]
        for place, task in enumerate(self.tasks):
            page += [f"## {task}", markdown(self._task(place))]
        failed = [f"- {label}: {message}" for label, row in self.rows.items() for message in row.failures]
        return "\n\n".join([*page, *(["Runs that failed count as 0:", "\n".join(failed)] if failed else [])]) + "\n"

    def _ranks(self) -> list[list[str]]:
        head = ["entry", "rank", "clean", "worst case", "mean", "needs", "minutes"]
        lines = [
            [label, str(one.rank), *map(str, (one.clean, one.worst, one.mean)), *self._known(label)]
            for label, one in self.scores().items()
        ]
        return [head, *lines]

    def _known(self, label: str) -> list[str]:
        row = self.rows[label]
        return [", ".join(row.needs) or "-", f"{row.seconds / 60:.0f}"]

    def _task(self, place: int) -> list[list[str]]:
        lines = []
        for label in self.scores():
            row = self.rows[label]
            by_opponent = np.asarray(row.accuracy)[place]
            worst = estimate(by_opponent.min(axis=0))
            chosen = row.choices[place]["setting"]
            means = [str(Estimate(float(one.mean()), float("nan"))) for one in by_opponent]
            lines.append([label, describe(chosen) or "-", *means, str(worst)])
        return [["entry", "setting", *self.opponents, "worst case"], *lines]


def run(arena: Arena, trials: Trials) -> Standing:
    """Plays all entries that are not in the folder yet, and writes the standing after each.

    Args:
      arena: the protocol.
      trials: how its runs are executed; with the folder of the standing, if it is to be kept.

    Raises:
      ValueError: the configuration of an entry is not valid, or the folder is that of another protocol.
      KeyboardInterrupt: stopped by Ctrl-C; the same call goes on.
    """
    standing = begin(arena, trials)
    for entry in arena.entries:
        row = standing.rows.get(entry.label)
        if row is None or row.key != folder_of(arena, entry):
            standing.rows[entry.label] = enter(arena, entry, trials)
            if trials.folder is not None:
                standing.write(trials.folder)
    return standing


def begin(arena: Arena, trials: Trials) -> Standing:
    """The standing in the folder, or one without rows; nothing is computed.

    Raises:
      ValueError: the configuration of an entry is not valid, or the folder is that of another protocol.
    """
    labels, *_ = [trials.grids(arena, entry)[0].labels for entry in arena.entries]
    values = itertools.product(*(labels[axis] for axis in arena.tasks))
    tasks = [describe(dict(zip(arena.tasks, task, strict=True))) or arena.name for task in values]
    opponents = [opponent.label for opponent in arena.opponents]
    new = Standing(arena.name, arena.version, tasks, opponents, list(arena.seeds), {})
    if trials.folder is None or not (trials.folder / FILE).is_file():
        return new
    old = read(trials.folder)
    if dataclasses.replace(old, rows={}) != new:
        raise ValueError(f"out={str(trials.folder)!r}: holds a standing of another protocol; choose another folder")
    return old


def read(path: Path) -> Standing:
    """A standing from :data:`FILE`, or from the folder that has one.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not what :meth:`Standing.write` has written.
    """
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r}: no such file; 'fedjax-drag arena run' writes it")
    try:
        mapping = json.loads(path.read_text(encoding="utf-8"))
        rows = {label: Row(**row) for label, row in mapping.pop("rows").items()}
        return Standing(**mapping, rows=rows)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{str(path)!r}: is not a standing of an arena: {error}") from None


def enter(arena: Arena, entry: Entry, trials: Trials) -> Row:
    """Plays an entry, or reads what it has played.

    Raises:
      ValueError: its configuration is not valid.
      KeyboardInterrupt: stopped by Ctrl-C; the same call goes on.
    """
    started = time.monotonic()
    outcome = trials.play(arena, entry)
    return Row(
        entry.label,
        as_text(entry.method),
        as_text(entry.settings),
        _needs(arena, entry, trials),
        _choices(arena, entry, outcome),
        outcome.accuracy.tolist(),
        list(outcome.failures),
        time.monotonic() - started,
        folder_of(arena, entry),
    )


def _needs(arena: Arena, entry: Entry, trials: Trials) -> list[str]:
    config = trials.grids(arena, entry)[0].points[0].config
    needs = build.method(config, Federations().split(config).num_clients).needs
    needs |= {TOLD} if _is_told("aggregator", config.aggregator) else frozenset()
    return [words for name, words in KNOWLEDGE.items() if name in needs]


def _is_told(key: str, part: Component) -> bool:
    """Whether a rule, or one inside it, has the number of attackers as an argument, which a simulation fills in."""
    inside = [value for value in part.arguments.values() if isinstance(value, Component)]
    return TOLD in inspect.signature(build.builder_of(key, part)).parameters or any(
        _is_told(key, one) for one in inside
    )


def _choices(arena: Arena, entry: Entry, outcome: Outcome) -> list[dict[str, Any]]:
    strengths: Mapping[str, Sequence[str]] = {one.label: list(one.strengths) for one in arena.opponents}
    return [
        {
            "task": dict(zip(arena.tasks, task, strict=True)),
            "setting": dict(zip(entry.settings, choice.setting, strict=True)),
            "strengths": {
                label: dict(zip(strengths[label], values, strict=True)) for label, values in choice.strengths.items()
            },
            "validation_accuracy": choice.worst_case,
        }
        for task, choice in outcome.choices.items()
    ]
