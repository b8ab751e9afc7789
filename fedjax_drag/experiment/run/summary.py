"""The figures of a run for its summary, and the table at the end of runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_drag.simulation.result import ROUNDING, TEST, VALIDATION, choice_metric, first_reached, last_highest

_TARGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def summary(history: Mapping[str, np.ndarray], seconds: float, compile_seconds: float | None) -> dict[str, Any]:
    """The figures of a run for ``summary.json``.

    Args:
      history: the run's history.
      seconds: running time, in seconds.
      compile_seconds: the part of it that was compilation, if known.

    Returns:
      Final and best accuracy on the test examples, and times; accuracies are None if nothing was evaluated. With
      validation examples the best accuracy is the test accuracy of the round with the highest validation accuracy,
      which are ``best_round`` and ``best_validation_accuracy``.
    """
    accuracy = np.asarray(history.get(TEST, ()))
    best = _best(history) if accuracy.size else None
    chosen = {} if VALIDATION not in history else {"best_round": None, "best_validation_accuracy": None}
    if chosen and best is not None:
        chosen = {"best_round": int(history["round"][best]), "best_validation_accuracy": history[VALIDATION][best]}
    return {
        "rounds": int(history["round"][-1]) if accuracy.size else 0,
        "final_accuracy": accuracy[-1] if accuracy.size else None,
        "best_accuracy": None if best is None else accuracy[best],
        **chosen,
        "seconds": round(seconds, 3),
        "compile_seconds": None if compile_seconds is None else round(compile_seconds, 3),
    }


def _best(history: Mapping[str, np.ndarray]) -> int | None:
    """The place of the evaluation that is chosen; None if no accuracy is finite."""
    by = np.asarray(history[choice_metric(history)])
    return last_highest(by) if np.isfinite(by).any() else None


def table(rows: Mapping[str, tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]) -> str:
    """A plain table of runs.

    Args:
      rows: history and summary of each run, by label.

    Returns:
      Aligned lines: final and best accuracy, the first round at up to three accuracies that the best run reached, and
      seconds. Where all runs have validation examples, their best rounds and those targets are by validation accuracy.
    """
    by = choice_metric(*(history for history, _ in rows.values()))
    best = max((_highest(history, by) for history, _ in rows.values()), default=0.0)
    targets = [target for target in _TARGETS if target <= best + ROUNDING][-3:]
    head = "best by validation" if by == VALIDATION else "best"
    lines = [["", "final", head, *(f"round at {target:.0%}" for target in targets), "rounds/s", "seconds"]]
    for label, (history, figures) in rows.items():
        reached = [_first_round(history, by, target) for target in targets]
        rate = figures.get("rounds_per_second")
        speed = "-" if rate is None else f"{rate:.1f}"
        alike = by == choice_metric(history)  # else others have no validation examples: its best is on the test set too
        highest = figures["best_accuracy"] if alike else _highest(history, by)
        accuracies = [_percent(figures["final_accuracy"]), _percent(highest)]
        lines.append([label, *accuracies, *reached, speed, f"{figures['seconds']:.1f}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def _highest(history: Mapping[str, np.ndarray], metric: str) -> float:
    values = np.asarray(history.get(metric, ()))
    return float(values[np.isfinite(values)].max(initial=0.0))


def _first_round(history: Mapping[str, np.ndarray], metric: str, target: float) -> str:
    place = first_reached(history[metric], target)
    return "-" if place is None else str(int(history["round"][place]))


def _percent(accuracy: float | None) -> str:
    return "-" if accuracy is None or not np.isfinite(accuracy) else f"{accuracy:.1%}"
