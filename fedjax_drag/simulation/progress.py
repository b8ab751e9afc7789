"""The progress of a run: a bar in a terminal or a notebook, lines elsewhere."""

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tqdm import TqdmWarning
from tqdm import tqdm as text_bar

from fedjax_drag.simulation.result import VALIDATION, choice_metric

SECONDS_BETWEEN_LINES = 30.0
"""Least time between two lines of a run whose progress nobody has asked for."""


class Progress:
    """A progress bar over a run's rounds, on standard error or as a widget; where there is none, lines.

    Args:
      label: what is running.
      num_rounds: rounds in the whole run.
      start: rounds already done.
      bar: whether there is a bar; None for one where :func:`has_bars`.
      every: where there is no bar, the least time in seconds between two lines; None for no lines.
    """

    def __init__(
        self, label: str, num_rounds: int, start: int = 0, *, bar: bool | None = None, every: float | None = None
    ):
        timing = "[{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
        layout = "{desc}{percentage:3.0f}%|{bar}| round {n_fmt}/{total_fmt} " + timing
        bar = has_bars() if bar is None else bar
        self._label = label
        self._num_rounds = num_rounds
        self._every = None if bar else every
        self._last_line = time.monotonic()
        self._compiled = False
        style = {"unit": " rounds", "smoothing": 0, "dynamic_ncols": True, "bar_format": layout}
        make = _notebook_bar() if bar and in_notebook() else text_bar
        self._bar = make(total=num_rounds, initial=start, desc=f"{label} (compiling)", disable=not bar, **style)

    def update(self, round_number: int, metrics: Mapping[str, Any]) -> None:
        """Moves the bar to an evaluated round; without a bar, writes a line if the last one is old enough."""
        name = choice_metric(metrics)
        accuracy = f"{'validation accuracy' if name == VALIDATION else 'accuracy'} {float(metrics[name]):.1%}"
        if self._every is not None and time.monotonic() - self._last_line >= self._every:
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


def unless_quiet(label: str, num_rounds: int, start: int, quiet: bool | None) -> Progress:
    """The progress of a recorded run: nothing if ``quiet``, else a bar, else a line every half minute."""
    if quiet:
        return Progress(label, num_rounds, start, bar=False)
    return Progress(label, num_rounds, start, bar=None if quiet is None else True, every=SECONDS_BETWEEN_LINES)


@contextlib.contextmanager
def watched(label: str, num_rounds: int, start: int, progress: bool | None) -> Iterator[Callable[[Any], None]]:
    """A callback that shows the progress of a run until the block ends.

    Args:
      label: what is running.
      num_rounds: rounds in the whole run.
      start: rounds already done.
      progress: None for a bar where :func:`has_bars`, True for one there and a line for each evaluation elsewhere,
        False for nothing.
    """
    shown = Progress(
        label, num_rounds, start, bar=False if progress is False else None, every=0.0 if progress else None
    )
    try:
        yield lambda event: shown.update(event.round, event.metrics)
    finally:
        shown.close()


def has_bars() -> bool:
    """Whether a progress bar can be drawn: standard error is a terminal, or the program runs in a notebook.

    ``TQDM_DISABLE=1`` in the environment turns bars off, as it does elsewhere.
    """
    if os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        return False
    is_terminal = getattr(sys.stderr, "isatty", None)  # a program without a console has no standard error
    return (is_terminal is not None and is_terminal()) or in_notebook()


def in_notebook() -> bool:
    """Whether the program runs in the kernel of a notebook."""
    interactive = sys.modules.get("IPython")
    return interactive is not None and hasattr(interactive.get_ipython(), "kernel")


def _notebook_bar() -> Any:
    with warnings.catch_warnings():  # without ipywidgets it is a bar of text, which is no fault of the user's
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.auto import tqdm
    return tqdm
