"""The result of an arena: for each entry a row of plain values, with every test figure, kept in a JSON file."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from fedjax_drag import notebook
from fedjax_drag.checks import shown
from fedjax_drag.experiment.arena.scores import Score, measured, score, worst_by_seed
from fedjax_drag.experiment.config.own import is_own, texts
from fedjax_drag.experiment.plain import write_json
from fedjax_drag.experiment.run import environment, results
from fedjax_drag.files import read_json
from fedjax_drag.simulation.criterion import ACCURACY, Criterion

FILE = results.STANDING
"""The file of a standing in an arena's folder."""

SHIPPED = Path(__file__).parent / "standings"
"""Standings that come with the package, as ``NAME.json``."""

REACHED = ("success", "after", "accuracy")
"""What is kept of a backdoor: its success on the test examples when the attack stops and at the end of the run, and the
test accuracy when it stops; 1, 1 and 0 where a run failed or its model is not finite."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What an entry has shown; all of it plain values.

    Attributes:
      label: of the entry.
      method: keys of a run's configuration.
      settings: values among which it was tuned.
      needs: what it must know, in words.
      choices: for each task its values, the setting chosen, the attackers' strengths and the validation accuracy, or
        what else is compared.
      accuracy: on the test examples, or another metric there, by task, opponent and seed; None for no figure.
      failures: messages of runs that failed.
      seconds: that its runs took.
      key: equal for rows whose runs are the same.
      passes: what the server's side of the method moves in a round, in multiples of the deltas; None if unknown.
      played: the day, as ``2026-11-25``; empty in the files of older versions.
      package: the version of this package that played it; empty in the files of older versions.
      doubts: test runs whose model is not finite or stands still, a line for each opponent; empty in the files of older
        versions.
      code: a checksum of the files that the method's parts are in; empty in the files of older versions.
      backdoors: by label shares by task and seed, see :data:`REACHED`; empty where the protocol has none.
    """

    label: str
    method: dict[str, Any]
    settings: dict[str, list[Any]]
    needs: list[str]
    choices: list[dict[str, Any]]
    accuracy: list[list[list[float | None]]]
    failures: list[str]
    seconds: float
    key: str
    passes: float | None = None
    played: str = ""
    package: str = ""
    doubts: list[str] = dataclasses.field(default_factory=list)
    code: str = ""
    backdoors: dict[str, dict[str, list[list[float]]]] = dataclasses.field(default_factory=dict)

    @property
    def figures(self) -> Float[np.ndarray, "tasks opponents seeds"]:
        """``accuracy`` as an array, with NaN for no figure."""
        return np.array(self.accuracy, float)

    @property
    def knowledge(self) -> str:
        """What it must know, as one text."""
        return ", ".join(self.needs) or "nothing"

    @property
    def is_own(self) -> bool:
        """Whether it is of a user's own parts: Python objects, or code that a configuration refers to."""
        return any(is_own(name) for name in texts(self.method))


@dataclasses.dataclass(frozen=True)
class Standing:
    """Rows of entries that have played by the same protocol.

    ``tables``, ``page`` and ``figures`` of this package show it.

    Attributes:
      name: of the arena.
      version: of its protocol.
      tasks: a name for each.
      opponents: labels, that of the federation without an attack first.
      seeds: of the test runs.
      rows: by label.
      protocol: as :func:`~fedjax_drag.experiment.arena.protocol.load_arena` reads it, without the entries; None in the
        files of older versions.
      metric: that is compared, as the fields of :attr:`criterion`; the accuracy in the files of older versions.
    """

    name: str
    version: int
    tasks: list[str]
    opponents: list[str]
    seeds: list[int]
    rows: dict[str, Row]
    protocol: dict[str, Any] | None = None
    metric: dict[str, Any] = dataclasses.field(default_factory=lambda: environment.facts_of(ACCURACY))

    @property
    def criterion(self) -> Criterion:
        """What is compared, on the test examples."""
        return Criterion(**self.metric)

    @property
    def backdoors(self) -> list[str]:
        """Labels of the backdoors."""
        return list((self.protocol or {}).get("backdoors", {}))

    @property
    def own(self) -> list[str]:
        """Labels of the entries that are of a user's own parts."""
        return [label for label, row in self.rows.items() if row.is_own]

    def scores(self, among: Iterable[str] | None = None) -> dict[str, Score]:
        """The figures of the entries, the best first.

        Args:
          among: labels of the entries that are compared; default all.
        """
        labels = self.rows if among is None else among
        return score({label: self.rows[label].figures for label in labels}, self.criterion)

    def lines(self) -> list[list[str]]:
        """The figures as text: a line of cells for each entry, the best first, below that of their names."""
        head = ["entry", "place", "ranks", "clean", "worst case", "mean", "needs", "passes", "minutes"]
        made = [head]
        for place, (label, one) in enumerate(self.scores().items(), start=1):
            row = self.rows[label]
            passes = "-" if row.passes is None else f"{row.passes:.1f}"
            figures = [one.ranks, *(x.text(self.criterion) for x in (one.clean, one.worst, one.mean))]
            made.append([label, str(place), *figures, row.knowledge, passes, f"{row.seconds / 60:.0f}"])
        return made

    def by_attack(self, place: int | None = None) -> tuple[list[str], Float[np.ndarray, "entries columns"]]:
        """Labels and mean accuracies by opponent with the worst case last, the best worst case first.

        Args:
          place: of a task; None for the mean over all of them.
        """
        labels, values = list(self.scores()), []
        for label in labels:
            accuracy = self.rows[label].figures[slice(None) if place is None else [place]]
            values.append([*accuracy.mean(axis=(0, 2)), worst_by_seed(accuracy, self.criterion).mean()])
        order = sorted(range(len(labels)), key=lambda i: -self.criterion.merits(values[i][-1]))
        return [labels[i] for i in order], np.array(values)[order]

    def write(self, folder: str | Path) -> None:
        """Writes :data:`FILE`, which :func:`read` reads."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_json(Path(folder) / FILE, dataclasses.asdict(self))

    def __repr__(self) -> str:
        by = self.criterion
        leading = [f"{label} {one.worst.text(by)}" for label, one in self.scores().items() if one.rank == 1]
        sizes = f"{len(self.rows)} entries, {len(self.tasks)} tasks, {len(self.opponents) - 1} attacks"
        case = f"best worst case{' in %' * by.is_share}"
        return f"Standing({self.name}: {sizes}, {case}: {', '.join(leading) or 'none'})"

    def _repr_html_(self) -> str:
        """Figures and accuracies by attack, the user's own entries marked."""
        if not self.rows:
            return notebook.table(self.name, {"entries": "none has been played"})
        labels, values = self.by_attack()
        cells = [[label, *map(self.criterion.figure, line)] for label, line in zip(labels, values, strict=True)]
        over = f", {len(self.tasks)} tasks, {len(self.seeds)} seeds"
        attacks = [["entry", *self.opponents, "worst case"], *cells]
        shades = notebook.shares(self.criterion.merits(values))
        return notebook.beside(
            notebook.grid(f"{self.name}: test {measured(self.criterion)}{over}", self.lines(), self.own),
            notebook.grid("Mean over the tasks, by attack", attacks, self.own, shades),
        )


def read(source: str | Path) -> Standing:
    """A standing from its file, from the folder that has one, or one of those that come with the package.

    Args:
      source: path of the file or the folder, or the name of one of :data:`SHIPPED`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not what :meth:`Standing.write` has written.
    """
    path = Path(source) / FILE if Path(source).is_dir() else Path(source)
    if not path.is_file() and (SHIPPED / f"{source}.json").is_file():
        path = SHIPPED / f"{source}.json"
    if not path.is_file():
        known = ", ".join(f"{place.stem!r}" for place in sorted(SHIPPED.glob("*.json")))
        raise FileNotFoundError(
            f"{str(path)!r}: no such file; 'fedjax-drag arena run' writes it, and the package has {known}"
        )
    try:
        standing = _typed("", read_json(path), Standing)
        _check(standing)
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: is not a standing of an arena: {error}") from None
    return standing


def _check(standing: Standing) -> None:
    """Refuses rows that do not fit the tasks, opponents and seeds, and a protocol with a key missing."""
    if {key: type(value) for key, value in standing.metric.items()} != environment.CRITERION:
        raise ValueError(f"metric={shown(standing.metric)}: must have {', '.join(environment.CRITERION)}")
    sizes, by = (len(standing.tasks), len(standing.opponents), len(standing.seeds)), standing.criterion
    for label, row in standing.rows.items():
        where = f"rows.{label}"
        if row.label != label:
            raise ValueError(f"{where}.label={row.label!r}: must be {label!r}")
        shape = np.shape(np.array(row.accuracy, object))
        if shape != sizes or 0 in sizes or sizes[1] < 2:
            raise ValueError(
                f"{where}.accuracy: has shape {shape}; must be tasks, opponents (two or more), seeds {sizes}"
            )
        reached = [figures.get(name) for figures in row.backdoors.values() for name in REACHED]
        fits = all(np.shape(np.array(one, object)) == (sizes[0], sizes[2]) for one in reached)
        if sorted(row.backdoors) != sorted(standing.backdoors) or not fits:
            names = ", ".join(REACHED)
            raise ValueError(f"{where}.backdoors: must be those of the protocol, with {names} by task and seed")
        shares = {"backdoors": np.array(reached, float)} | ({"accuracy": row.figures} if by.is_share else {})
        for name, values in shares.items():
            if outside := [value for value in values.ravel().tolist() if not 0.0 <= value <= 1.0]:
                raise ValueError(f"{where}.{name}={outside[0]!r}: must be in [0, 1]")
        parts = [choice.get(key) for choice in row.choices for key in ("task", "setting", "strengths")]
        if len(row.choices) != sizes[0] or not all(isinstance(part, dict) for part in parts):
            raise ValueError(f"{where}.choices: must be one mapping a task, with task, setting, strengths")
    for key in ("base", "tasks", "attacks", "tuning_seeds", "seeds", "most_settings"):
        if standing.protocol is not None and key not in standing.protocol:
            raise ValueError(f"protocol: has no {key}")


_WORDS = {dict: "a mapping", list: "a list", str: "a text", int: "an integer", float: "a finite number"}


def _typed(where: str, value: Any, hint: Any) -> Any:
    """A plain value of a type that the fields here have; a mapping that is to be a class as an instance of it."""
    kind, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Any or (kind is types.UnionType and value is None):
        return value
    if kind is types.UnionType:
        return _typed(where, value, inside[0])
    if dataclasses.is_dataclass(kind):
        given, fields = _typed(where, value, dict[str, Any]), {field.name: field for field in dataclasses.fields(kind)}
        absent = [name for name, x in fields.items() if x.default is x.default_factory is dataclasses.MISSING]
        if wrong := [name for name in (*given, *absent) if name not in fields or name not in given]:
            raise ValueError(f"{where or 'the file'}: {wrong[0]!r} is unknown or missing")
        made: Any = kind
        return made(**{name: _typed(f"{where}.{name}".strip("."), x, fields[name].type) for name, x in given.items()})
    kinds: Any = (int, float) if kind is float else kind
    if type(value) is bool or not isinstance(value, kinds) or (kind is float and not math.isfinite(value)):
        raise ValueError(f"{where or 'the file'}={shown(value)}: must be {_WORDS[kind]}")
    if isinstance(value, list):
        return [_typed(where, entry, *inside) for entry in value]
    if isinstance(value, dict):
        return {key: _typed(f"{where}.{key}", entry, inside[1]) for key, entry in value.items()}
    return value
