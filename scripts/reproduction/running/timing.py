"""The time of a client's local steps with each method that a target compares, measured in turn.

A sweep can time the clients of its cells too, but minutes apart, while the load of the machine changes: the times of
methods with equal local steps then differ by tens of percent.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clients import local_steps
from benchmarks.timing import Times, in_turn, warm_up
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.run import plan
from fedjax_drag.experiment.sweep.grid import load_grid
from reproduction.targets.target import Target

FILE = "client_times.json"
TURNS = 20
"""Number of times that each method is timed."""
_TIMED_ALONE = ("mesh=null", "rounds=1", "eval_every=1", "time_clients=false")


def measure(target: Target, overrides: Sequence[str], folder: Path) -> None:
    """Times the methods of a target and writes the milliseconds of every turn into a folder.

    An existing file is kept.

    Args:
      target: a target whose configuration compares methods.
      overrides: changes of the configuration at a scale.
      folder: results folder of the target.
    """
    if (folder / FILE).is_file():
        return
    jobs = plan(load_grid(target.config, overrides).base, _TIMED_ALONE).jobs
    contestants = {job.label: local_steps(job.simulation) for job in jobs}
    warm_up(contestants)
    results.write_json(folder / FILE, in_turn(contestants, TURNS))


def read(folder: Path) -> Times:
    """The times that :func:`measure` wrote into a folder; empty if there are none."""
    try:
        return dict(json.loads((folder / FILE).read_text()))
    except (OSError, ValueError, TypeError):  # no file, or not one that measure wrote
        return {}
