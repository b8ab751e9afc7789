"""How long a client's local steps take with each method that a target compares, measured in turn.

A sweep can time the clients of its cells, but minutes apart, and what else the machine does comes and goes: methods
whose clients do the same differ by tens of percent then.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmark_timing import in_turn, warm_up
from client_benchmark import local_steps

from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.run import plan
from fedjax_drag.experiment.sweep.grid import load_grid
from reproduction.outcome import MissingError
from reproduction.targets import Target

FILE = "client_times.json"
TURNS = 20
"""How often each method is timed."""
_ALONE = ("mesh=null", "rounds=1", "eval_every=1", "time_clients=false")


def measure(target: Target, overrides: Sequence[str], folder: Path) -> None:
    """Times what a target compares and writes the milliseconds of every turn, by method, into a folder.

    What lies there stays.

    Args:
      target: its configuration compares methods.
      overrides: its changes at a scale.
      folder: of its sweep.
    """
    if (folder / FILE).is_file():
        return
    jobs = plan(load_grid(target.config, overrides).base, _ALONE).jobs
    contestants = {job.label: local_steps(job.simulation) for job in jobs}
    warm_up(contestants)
    results.write_json(folder / FILE, in_turn(contestants, TURNS))


def ratio(folder: Path | None, method: str, other: str) -> float:
    """The median over the turns of a method's time in multiples of another's.

    Raises:
      MissingError: they were not timed.
    """
    try:
        times = json.loads(((folder or Path()) / FILE).read_text())
        return statistics.median(a / b for a, b in zip(times[method], times[other], strict=True))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not what measure writes
        raise MissingError("not measured") from None
