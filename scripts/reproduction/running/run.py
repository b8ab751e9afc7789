"""Running a target: its sweep, and the times of its clients if claims are about them."""

from pathlib import Path

import jax

from fedjax_drag.experiment.sweep import sweep, sweep_folder
from reproduction.running import timing
from reproduction.targets.target import Scale, Target


def run(target: Target, scale: Scale, folder: Path, resume: bool = False, quiet: bool | None = None) -> str:
    """Runs a target and returns why some or all of it could not be run; an empty text if all of it ran.

    Args:
      target: what to run.
      scale: how much of it.
      folder: its results folder.
      resume: keep finished cells in the folder and continue interrupted ones.
      quiet: as for a sweep.
    """
    overrides = target.overrides(scale)
    if overrides is None:
        return "only at full scale"
    try:
        begun = resume and (folder / sweep_folder.CONFIG).is_file()
        with sweep.plan(target.config, overrides, out=folder, resume=begun) as planned:
            cells = sweep.execute(planned, quiet).cells
        if target.timed:
            timing.measure(target, overrides, folder)
    except (ValueError, OSError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    finally:
        jax.clear_caches()
    failed = [cell.message for cell in cells if cell.status == "failed"]
    return f"{len(failed)} of {len(cells)} cells failed: {failed[0]}" if failed else ""
