"""Running a target: its sweep, and the times of its clients if claims are about them.

A sweep can time the clients of its cells too, but minutes apart, while the load of the machine changes: the times of
methods with equal local steps then differ by tens of percent. Here the methods are timed in turn.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.clients import local_steps
from benchmarks.timing import Times, in_turn, warm_up
from fedjax_drag.experiment.build.experiment import load_experiment, read
from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.plain import write_json
from fedjax_drag.experiment.run.run import plan
from fedjax_drag.experiment.sweep import sweep, sweep_folder
from fedjax_drag.experiment.sweep.grid import load_grid
from reproduction.targets.target import Scale, Target

TIMES = "client_times.json"
_TIMED_ALONE = ("mesh=null", "rounds=1", "eval_every=1", "time_clients=false")


def run(
    target: Target, scale: Scale, folder: Path, resume: bool = False, quiet: bool | None = None, seeds: str = ""
) -> str:
    """Runs a target and returns why some or all of it could not be run; an empty text if all of it ran.

    Args:
      target: what to run.
      scale: how much of it.
      folder: its results folder.
      resume: keep finished cells in the folder and continue interrupted ones.
      quiet: as for a sweep.
      seeds: to run in place of the configuration's, with commas between them; they are for results that have times.
    """
    overrides = target.overrides(scale)
    if overrides is None:
        return "only at full scale"
    overrides += (f"axes.seed=[{seeds}]",) if seeds else ()
    try:
        begun = resume and (folder / sweep_folder.CONFIG).is_file()
        with sweep.plan(load_grid(_source(target), overrides, Code()), folder, begun) as planned:
            cells = sweep.execute(planned, quiet).cells
        if target.turns and not seeds:
            measure_times(target, overrides, folder)
    except (ValueError, OSError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    finally:
        jax.clear_caches()
    failed = [cell.message for cell in cells if cell.status == "failed"]
    return f"{len(failed)} of {len(cells)} cells failed: {failed[0]}" if failed else ""


def _source(target: Target) -> Path | dict[str, Any]:
    """The configuration of a target; of another reading with the methods alone that it changes."""
    if not target.reading:
        return target.config
    changed, whole = {change.split(".")[1] for change in target.reading}, read(target.config)
    return whole | {"compare": {label: given for label, given in whole["compare"].items() if label in changed}}


def measure_times(target: Target, overrides: Sequence[str], folder: Path) -> None:
    """Times the methods of a target and writes the milliseconds of every turn into a folder.

    An existing file is kept.

    Args:
      target: a target whose configuration compares methods.
      overrides: changes of the configuration at a scale.
      folder: results folder of the target.
    """
    if (folder / TIMES).is_file():
        return
    with plan(load_experiment(load_grid(target.config, overrides).base, _TIMED_ALONE)) as planned:
        contestants = {job.label: local_steps(job.simulation) for job in planned.jobs}
    warm_up(contestants)
    write_json(folder / TIMES, in_turn(contestants, target.turns))


def read_times(folder: Path) -> Times:
    """The times that :func:`measure_times` wrote into a folder; empty if there are none."""
    try:
        return dict(json.loads((folder / TIMES).read_text()))
    except (OSError, ValueError, TypeError):  # no file, or not one that it wrote
        return {}
