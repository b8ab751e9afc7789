"""What became of a cell: done, diverged, failed or interrupted, by its result or by what is in its folder."""

from pathlib import Path

import numpy as np

from fedjax_drag.checks import first_line, message_of
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.metrics_file import History
from fedjax_drag.experiment.sweep.grid import Point
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.simulation.criterion import Criterion
from fedjax_drag.simulation.driver import reason as reason_to_end
from fedjax_drag.simulation.result import Result, rejection


def outcome(point: Point, ended: Result | Exception) -> Cell:
    """The outcome of a cell that ended with a result or with an exception."""
    if isinstance(ended, Exception):
        return failed(point, ended)
    return judged(point, ended.history, ended.diverged_at, ended.criterion)


def judged(point: Point, history: History, diverged_at: int | None, criterion: Criterion) -> Cell:
    """The outcome of a cell that came to its end."""
    return Cell(point.values, *verdict(history, diverged_at), history, criterion)


def verdict(history: History, diverged_at: int | None) -> tuple[str, str]:
    """Status and message of a run at its end: done, unless parameters or the last test loss are not finite."""
    if diverged_at is not None:
        return "diverged", f"parameters are not finite after round {diverged_at}"
    losses = history["test_loss"]
    finite = np.all(np.isfinite(losses.reshape(len(losses), -1)), axis=1)
    if finite[-1]:
        return "done", rejection(history)
    first = int(history["round"][np.flatnonzero(finite)[-1] + 1 if finite.any() else 0])
    return "diverged", f"test_loss is not finite from round {first} on"


def failed(point: Point, error: Exception) -> Cell:
    """The outcome of a cell that cannot be run."""
    return Cell(point.values, "failed", reason(error), {})


def reason(error: Exception) -> str:
    """An exception in one line."""
    return message_of(error) if isinstance(error, ValueError) else first_line(error)


def finished(folder: Path, point: Point) -> Cell | None:
    """The outcome of a cell that is finished, by its folder, else None."""
    try:
        run = results.stored(folder, point.config)
    except ValueError:
        return None
    history = run.history
    if not (history and run.is_whole and "interrupted" in run.figures):
        return None
    stopped = run.diverged_at is not None and point.config.stop_on_divergence
    is_over = not run.figures["interrupted"] and (stopped or history["round"][-1] >= point.config.rounds)
    if not is_over and reason_to_end(history, point.config, run.criterion) is None:
        return None
    return judged(point, history, run.diverged_at, run.criterion)


def interrupted(folder: Path, point: Point) -> Cell | None:
    """The outcome of a cell that was stopped on its way, if it has left evaluations in its folder, else None."""
    run = results.stored(folder, point.config)
    stopped = "interrupted", "stopped before its end"
    return Cell(point.values, *stopped, run.history, run.criterion) if run.history else None
