"""The progress of a run on standard error, and the table at its end."""

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

SECONDS_BETWEEN_LINES = 30.0
"""Least time between two lines where standard error is no terminal."""

_TARGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


class Progress:
    """A progress bar over a run's rounds on standard error; where that is no terminal, a line every half minute.

    Args:
      label: what is running.
      num_rounds: rounds in the whole run.
      start: rounds already done.
      quiet: True for nothing at all, None for a bar only where standard error is a terminal.
    """

    def __init__(self, label: str, num_rounds: int, start: int = 0, quiet: bool | None = None):
        timing = "[{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
        layout = "{desc}{percentage:3.0f}%|{bar}| round {n_fmt}/{total_fmt} " + timing
        disable = quiet or (quiet is None and not sys.stderr.isatty())
        self._label = label
        self._num_rounds = num_rounds
        self._last_line = None if quiet or not disable else time.monotonic()  # None: no lines are written
        self._compiled = False
        style = {"unit": " rounds", "smoothing": 0, "dynamic_ncols": True, "bar_format": layout}
        self._bar = tqdm(total=num_rounds, initial=start, desc=f"{label} (compiling)", disable=disable, **style)

    def update(self, round_number: int, metrics: Mapping[str, Any]) -> None:
        """Moves the bar to an evaluated round; without a bar, writes a line if the last one is half a minute old."""
        accuracy = f"accuracy {float(metrics['test_accuracy']):.1%}"
        if self._last_line is not None and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(f"{self._label}: round {round_number}/{self._num_rounds}, {accuracy}", file=sys.stderr, flush=True)
        if not self._compiled:  # compilation says nothing about the speed of later rounds
            self._compiled = True
            self._bar.unpause()
            self._bar.initial = round_number
        self._bar.set_description(self._label, refresh=False)
        self._bar.set_postfix_str(accuracy, refresh=False)
        self._bar.update(round_number - self._bar.n)
        self._bar.refresh()

    def note(self, text: str) -> None:
        """Shows a line above the bar, where there is one."""
        if not self._bar.disable:
            self._bar.write(f"{self._label}: {text}", file=sys.stderr)

    def close(self) -> None:
        """Closes the bar."""
        self._bar.close()


def summary(history: Mapping[str, np.ndarray], seconds: float, compile_seconds: float | None) -> dict[str, Any]:
    """The figures of a run for ``summary.json``.

    Args:
      history: the run's history.
      seconds: running time, in seconds.
      compile_seconds: the part of it that was compilation, if known.

    Returns:
      Final and best accuracy, and times; accuracies are None if nothing was evaluated.
    """
    accuracy = np.asarray(history.get("test_accuracy", ()))
    finite = accuracy[np.isfinite(accuracy)]
    return {
        "rounds": int(history["round"][-1]) if accuracy.size else 0,
        "final_accuracy": accuracy[-1] if accuracy.size else None,
        "best_accuracy": finite.max() if finite.size else None,
        "seconds": round(seconds, 3),
        "compile_seconds": None if compile_seconds is None else round(compile_seconds, 3),
    }


def table(rows: Mapping[str, tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]) -> str:
    """A plain table of runs.

    Args:
      rows: history and summary of each run, by label.

    Returns:
      Aligned lines: final and best accuracy, the first round at up to three accuracies that the best run reached, and
      seconds.
    """
    best = max((s["best_accuracy"] or 0.0 for _, s in rows.values()), default=0.0)
    targets = [target for target in _TARGETS if target <= best][-3:]
    lines = [["", "final", "best", *(f"round at {target:.0%}" for target in targets), "rounds/s", "seconds"]]
    for label, (history, figures) in rows.items():
        reached = [_first_round(history, target) for target in targets]
        rate = figures.get("rounds_per_second")
        speed = "-" if rate is None else f"{rate:.1f}"
        accuracies = [_percent(figures["final_accuracy"]), _percent(figures["best_accuracy"])]
        lines.append([label, *accuracies, *reached, speed, f"{figures['seconds']:.1f}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def _first_round(history: Mapping[str, np.ndarray], target: float) -> str:
    reached = np.flatnonzero(np.asarray(history["test_accuracy"]) >= target)
    return str(int(history["round"][reached[0]])) if reached.size else "-"


def _percent(accuracy: float | None) -> str:
    return "-" if accuracy is None or not np.isfinite(accuracy) else f"{accuracy:.1%}"
