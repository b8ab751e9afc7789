"""What a results folder holds, whether or not all of it has come to its end."""

import contextlib
import csv
import dataclasses
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.experiment.build.experiment import load, variants
from fedjax_drag.experiment.config.config import Config, slug
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.run import environment, metrics_file, results
from fedjax_drag.experiment.run.metrics_file import METRICS, History
from fedjax_drag.experiment.sweep import outcome_table, sweep_folder
from fedjax_drag.experiment.sweep.grid import Grid, load_grid
from fedjax_drag.experiment.sweep.outcomes import verdict
from fedjax_drag.files import read_bytes, read_json
from fedjax_drag.simulation.criterion import ACCURACY, Criterion


@dataclasses.dataclass(frozen=True)
class ReportedRun:
    """One run, or what there is of it.

    Attributes:
      row: what is compared: the rule, the variant, the name of a single run.
      column: under which settings; empty if there is but one.
      label: all that tells it from the others.
      config: its configuration.
      history: empty if nothing was evaluated or what was cannot be read.
      status: ``done``, ``diverged`` (parameters, or the loss at the end, are not finite), ``interrupted``,
        ``unfinished`` (still going, or killed), ``failed``, ``damaged`` (cannot be read) or ``not run``.
      message: what went wrong, or empty.
      figures: its ``summary.json``, or empty.
      environment: its ``environment.json``, or empty.
      place: its folder within that of the results; empty if it is the same.
      values: of a cell of a sweep, the number or the label of its value by axis.
      criterion: by what its rounds are chosen.
    """

    row: str
    column: str
    label: str
    config: Config
    history: History
    status: str
    message: str
    figures: dict[str, Any]
    environment: dict[str, Any]
    place: str = ""
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    criterion: Criterion = ACCURACY

    def scalars(self, name: str) -> np.ndarray | None:
        """A quantity of which there is one number for each evaluation ``[E]``; None if it is not that, or not there."""
        found = self.history.get(name)
        return found if found is not None and found.ndim == 1 else None


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
    if compared:
        runs = tuple(
            dataclasses.replace(_run(folder / slug(label), (label, "", label), variant), place=slug(label))
            for label, variant in compared.items()
        )
        return Found("comparison", config.name, runs, None, yaml)
    only = _run(folder, (config.name, "", config.name), config)
    return Found("run", config.name, (only,), None, yaml)


def cells(found: Found) -> list[outcome_table.Cell]:
    """The runs of a sweep as the cells of its matrix."""
    assert found.grid is not None
    known = (*outcome_table.COMPLETE, "failed")
    status = lambda run: run.status if run.status in known else "interrupted"
    return [
        outcome_table.Cell(point.values, status(run), run.message, run.history, run.criterion)
        for point, run in zip(found.grid.points, found.runs, strict=True)
    ]


def finite(value: Any) -> float | None:
    """A number from a file that may hold anything; None if it is none or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _sweep(folder: Path) -> Found:
    grid = load_grid(folder / sweep_folder.CONFIG)
    failures = _failures(folder / sweep_folder.TABLE, grid)
    runs, sides = [], outcome_table.axes_of(grid)
    for point in grid.points:
        row, column = (outcome_table.setting(grid, point.values, axes) for axes in sides)
        failure = failures.get(_key(point.values))
        place = f"{sweep_folder.CELLS}/{point.folder}"
        run = _run(folder / place, (row, column, point.label), point.config, failure)
        runs.append(dataclasses.replace(run, place=place, values=point.values))
    yaml = written(grid.to_mapping())
    return Found("sweep", grid.base.name, tuple(runs), grid, yaml)


def _run(folder: Path, names: tuple[str, str, str], config: Config, failure: str | None = None) -> ReportedRun:
    history: History = {}
    metrics = folder / METRICS
    figures: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):  # not there yet, or damaged
        found = read_json(folder / results.SUMMARY)
        figures = found if isinstance(found, dict) else {}
    try:
        history, damage = metrics_file.read(metrics)
        history = metrics_file.typed(history, figures.get("dtypes"))
        if damage:
            status, message = "damaged", f"{metrics_file.listed(damage)} left out; --resume restores them"
        elif not history:
            begun = (folder / results.CONFIG).is_file()
            status, message = ("unfinished", "no evaluation yet") if begun else ("not run", "")
        else:
            status, message = _status(history, figures, config.rounds)
    except ValueError as error:
        status, message = "damaged", str(error)
    if failure is not None:
        status, message = "failed", failure
    recorded, criterion = environment.read(folder), environment.read_criterion(folder)
    return ReportedRun(*names, config, history, status, message, figures, recorded, criterion=criterion)


def _status(history: History, figures: Mapping[str, Any], rounds: int) -> tuple[str, str]:
    last = int(history["round"][-1])
    stopped_by = finite(figures.get("diverged_at"))
    status, message = verdict(history, None if stopped_by is None else int(stopped_by))
    if status == "diverged":
        return status, message
    if figures.get("interrupted") is True:
        return "interrupted", f"stopped after {last} of {rounds} rounds"
    if isinstance(ended := figures.get("ended_early"), str):
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
    return {_key({axis: row.get(axis) for axis in grid.axes}): str(row.get("message") or "") for row in failed}


def _key(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Values by axis as text that is the same for a cell and for its row in the table."""
    return tuple(_same(value) for value in values.values())


def _same(value: Any) -> str:
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        return str(value)
