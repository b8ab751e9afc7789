"""What a results folder holds, whether or not all of it has come to its end."""

import csv
import dataclasses
import functools
import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.experiment.build.experiment import load, variants
from fedjax_drag.experiment.config.config import Config, slug
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.plain import grouped
from fedjax_drag.experiment.run import environment, results
from fedjax_drag.experiment.run.results import StoredRun
from fedjax_drag.experiment.sweep import outcome_table, sweep_folder
from fedjax_drag.experiment.sweep.grid import Grid, load_grid
from fedjax_drag.experiment.sweep.outcome_table import exact_mean
from fedjax_drag.experiment.sweep.outcomes import verdict
from fedjax_drag.files import read_bytes
from fedjax_drag.simulation.criterion import Criterion, common


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportedRun(StoredRun):
    """One run, or what there is of it: its history is empty if nothing was evaluated or what was cannot be read.

    Attributes:
      row: what is compared: the rule, the variant, the name of a single run.
      column: under which settings; empty if there is but one.
      label: all that tells it from the others.
      status: ``done``, ``diverged`` (parameters, or the loss at the end, are not finite), ``interrupted``,
        ``unfinished`` (still going, or killed), ``failed``, ``damaged`` (cannot be read) or ``not run``.
      message: what went wrong, or empty.
      environment: its ``environment.json``, or empty.
      place: its folder within that of the results; empty if it is the same.
      values: of a cell of a sweep, the number or the label of its value by axis.
    """

    row: str
    column: str
    label: str
    status: str
    message: str
    environment: dict[str, Any]
    place: str
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ only by seed.

    Attributes:
      row: what is compared.
      column: under which settings.
      runs: all of them.
    """

    row: str
    column: str
    runs: tuple[ReportedRun, ...]

    @property
    def drawn(self) -> tuple[ReportedRun, ...]:
        """Those that figures are taken from: the ones that came to their end, or if none has, those that began."""
        ended = tuple(run for run in self.runs if run.status in ("done", "diverged"))
        return ended or tuple(run for run in self.runs if run.history)

    @property
    def statuses(self) -> dict[str, int]:
        """How many runs ended how."""
        return Counter(run.status for run in self.runs)

    def finals(self, metric: str) -> list[float]:
        """A metric at the end of the runs that figures are taken from."""
        return [float(run.history[metric][-1]) for run in self.drawn]

    def final(self, metric: str) -> float:
        """A metric at the end, its mean over the seeds, as a sweep compares it; NaN without any."""
        return exact_mean(np.array(self.finals(metric)))


@dataclasses.dataclass(frozen=True)
class Found:
    """A results folder that was read.

    Attributes:
      kind: ``run``, ``comparison`` or ``sweep``.
      name: of its configuration.
      runs: one at least; those that have not run included.
      grid: of a sweep, else None.
      yaml: its configuration.
    """

    kind: str
    name: str
    runs: tuple[ReportedRun, ...]
    grid: Grid | None
    yaml: str

    @functools.cached_property
    def groups(self) -> list[Group]:
        """The runs by row and column, in their order."""
        found = grouped(self.runs, lambda run: (run.row, run.column))
        return [Group(row, column, tuple(same)) for (row, column), same in found.items()]

    @property
    def criterion(self) -> Criterion:
        """By what rounds and settings are chosen: the same for all runs."""
        return common(run for group in self.groups for run in group.drawn)


def read(folder: Path) -> Found:
    """Reads a run, a comparison or a sweep.

    Raises:
      FileNotFoundError: there is no such folder, or none of them is in it.
      ValueError: its configuration is not valid.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such results folder")
    if (folder / sweep_folder.CONFIG).is_file():
        return _sweep(folder)
    if not (folder / results.CONFIG).is_file():
        raise FileNotFoundError(
            f"{str(folder)!r}: not a results folder; must be that of a run, a comparison or a sweep"
        )
    config = load(folder / results.CONFIG)
    yaml = written(config.to_mapping())
    compared = variants(config)
    places = {label: slug(label) for label in compared} or {config.name: ""}
    runs = tuple(
        _run(folder / place, compared.get(label, config), row=label, column="", label=label, place=place)
        for label, place in places.items()
    )
    return Found("comparison" if compared else "run", config.name, runs, None, yaml)


def _sweep(folder: Path) -> Found:
    grid = load_grid(folder / sweep_folder.CONFIG)
    failures = _failures(folder / sweep_folder.TABLE, grid)
    runs, sides = [], outcome_table.axes_of(grid)
    for point in grid.points:
        row, column = (outcome_table.setting(grid, point.values, axes) for axes in sides)
        place = f"{sweep_folder.CELLS}/{point.folder}"
        named = {"row": row, "column": column, "label": point.label, "place": place, "values": point.values}
        runs.append(_run(folder / place, point.config, failures.get(tuple(map(_same, point.values.values()))), **named))
    yaml = written(grid.to_mapping())
    return Found("sweep", grid.base.name, tuple(runs), grid, yaml)


def _run(folder: Path, config: Config, failure: str | None = None, **named: Any) -> ReportedRun:
    """What there is of a run, with its names; ``failure`` is what its sweep says of it."""
    try:
        run = results.stored(folder, config)
        status, message = _status(run)
    except ValueError as error:
        run, status, message = StoredRun(folder, config, {}), "damaged", str(error)
    if failure is not None:
        status, message = "failed", failure
    return ReportedRun(**vars(run), **named, status=status, message=message, environment=environment.read(folder))


def _status(run: StoredRun) -> tuple[str, str]:
    if run.left_out:
        return "damaged", run.left_out
    if not run.history:
        return ("unfinished", "no evaluation yet") if (run.folder / results.CONFIG).is_file() else ("not run", "")
    last, rounds = int(run.history["round"][-1]), run.config.rounds
    status, message = verdict(run.history, run.diverged_at)
    if status == "diverged":
        return status, message
    if run.figures.get("interrupted") is True:
        return "interrupted", f"stopped after {last} of {rounds} rounds"
    if isinstance(ended := run.figures.get("ended_early"), str):
        return "done", ended
    if last < rounds:
        return "unfinished", f"{last} of {rounds} rounds so far"
    return status, message


def _failures(path: Path, grid: Grid) -> dict[tuple[str, ...], str]:
    """Messages of the cells that failed, which need not have left anything else than a row of the table."""
    try:
        lines = io.StringIO(read_bytes(path).decode(errors="replace"), newline="")
        failed = [row for row in csv.DictReader(lines) if row.get("status") == "failed"]
    except (OSError, ValueError, csv.Error):
        return {}
    return {tuple(_same(row.get(axis)) for axis in grid.axes): str(row.get("message") or "") for row in failed}


def _same(value: Any) -> str:
    """A value as text that is the same for a cell and for its row in the table."""
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        return str(value)
