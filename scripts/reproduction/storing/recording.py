"""Recording: from the results folders of a sweep to the stored results of a target."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.experiment.run import environment, metrics_file
from fedjax_drag.experiment.run.metrics_file import History
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.outcome_table import COMPLETE, Cell
from reproduction import running
from reproduction.judging import freeloaders, outcome
from reproduction.storing import settings, stored
from reproduction.storing.stored import Origin, Stored
from reproduction.targets.target import Scale, Target

KEPT = ("round", "test_accuracy", "validation_accuracy", "test_loss", "output_accuracy", "num_expelled")
"""Metrics of each evaluation that are stored, beside those that a target draws or compares.

Those of each client are stored as what questions need of them. No question asks for ``output_accuracy`` yet, the
accuracy of TACO's ``z``.
"""


def record(target: Target, folders: Sequence[Path], into: Path, *, anew: bool = False) -> int:
    """Stores the results of a target, beside those of other seeds and parts that are stored already.

    Cells that different versions ran are stored with a warning: settings that are not written down, the defaults, may
    have changed between them.

    Args:
      target: what was run.
      folders: results folders of its sweep or of parts of it; of a cell in several, the last counts.
      into: folder of the record.
      anew: forget what is stored there.

    Returns:
      The number of cells that ``folders`` have; with none, nothing is written.

    Raises:
      ValueError: a folder is not of this target, or was run under other settings than the others or the stored ones.
    """
    path = stored.path_of(into, target.name)
    whole = None if anew else stored.read(path)
    count = 0
    for folder in folders:
        found = of_folder(target, folder)
        if found is not None:
            count += len(found.cells)
            whole = found if whole is None else stored.merged(whole, found, target.name)
    if count and whole is not None:
        ran = sorted({origin for origin in whole.origins if origin != Origin()})
        if len(ran) > 1:
            versions = ", ".join(map(_said, ran))
            warnings.warn(f"{target.name}: cells of {versions}, whose defaults may differ, are joined", stacklevel=2)
        stored.write(path, whole)
    return count


def check(target: Target, scale: Scale, into: Path) -> None:
    """Refuses a run whose results could not join those that are stored, before it starts.

    Raises:
      ValueError: it would be run under other settings, or the stored results are damaged.
    """
    there = stored.read(stored.path_of(into, target.name))
    own = None if there is None else settings.of_scale(target, scale)
    if there is not None and own is not None:
        stored.merged(there, Stored((), (), own), target.name)


def of_folder(target: Target, folder: Path) -> Stored | None:
    """What a results folder has of a target; None if no cell ran to the end.

    Raises:
      ValueError: it is not the folder of a sweep of this target.
    """
    grid, own = settings.of_folder(folder, target)
    table = outcome.read(folder)
    places = {stored.key(point.values): folder / sweep_folder.CELLS / point.folder for point in grid.points}
    cells, origins = [], []
    for cell in table.cells if table else ():
        if cell.status in COMPLETE:
            place = places.get(stored.key(cell.values))
            if place is None:
                raise ValueError(
                    f"{str(folder)!r}: {sweep_folder.CONFIG} must have all cells of the table, also {cell.values}"
                )
            values = cell.values if "seed" in cell.values else {**cell.values, "seed": grid.base.seed}
            cells.append(Cell(values, cell.status, cell.message, _reduced(target, cell, place)))
            origins.append(_origin(place))
    if not cells:
        return None
    return Stored(tuple(cells), tuple(origins), own, running.read_times(folder))


def _reduced(target: Target, cell: Cell, place: Path) -> History:
    """The metrics of a cell that are stored."""
    wanted = dict.fromkeys((*KEPT, target.y, *target.paired))
    known = {name: cell.history[name] for name in wanted if name in cell.history}
    kept = {"test_loss"} if cell.status == outcome.DIVERGED else set()  # NaN alone, too: it dates the divergence
    history = {name: values for name, values in known.items() if name in kept or not np.isnan(values).all()}
    if "num_expelled" in history:  # of TACO, whose coefficients are in the file of the run alone
        history |= freeloaders.reduced(metrics_file.read(place / metrics_file.METRICS).history, cell.values)
    return history


def _said(origin: Origin) -> str:
    device = f" on {origin.device}" if origin.device else ""
    return f"{origin.fedjax_drag} ({origin.commit[:7] or 'no commit'}, jax {origin.jax}{device})"


def _origin(place: Path) -> Origin:
    """What ran a cell, from its results folder."""
    try:
        about: Mapping[str, Any] = json.loads((place / environment.ENVIRONMENT).read_text(encoding="utf-8"))
        packages = about["packages"]
        versions = about["git_commit"] or "", packages["jax"], packages["fedjax-drag"]
        return Origin(*versions, about.get("device_kind", ""))
    except (OSError, ValueError, KeyError, TypeError):  # written by another version, or removed
        return Origin()
