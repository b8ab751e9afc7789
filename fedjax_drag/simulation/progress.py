"""The progress of what runs: a bar in a terminal or a notebook, lines elsewhere."""

import contextvars
import os
import sys
import threading
import time
import warnings
from typing import Any, Self

from tqdm import TqdmWarning
from tqdm import tqdm as text_bar

SECONDS_BETWEEN_LINES = 30.0
"""Time between two lines where there is no bar."""

_innermost: "contextvars.ContextVar[Progress | None]" = contextvars.ContextVar("progress", default=None)


class Progress:
    """A progress bar on standard error or as a widget; where there is none, lines.

    Lines come from a thread, since programs say nothing while they are compiled and while they run. What is started
    inside something else, such as the run of a cell inside a sweep, is part of the other's lines.

    Args:
      label: what is running.
      total: how many units it has.
      start: units that were done before.
      unit: what is counted.
      quiet: True for neither bar nor lines, False for a bar; None for a bar where :func:`has_bars`, else lines.
      every: the time in seconds between two lines, default :data:`SECONDS_BETWEEN_LINES`; 0 for one at each update.
      share: how many units it is of what it runs inside.
    """

    def __init__(
        self,
        label: str,
        total: int,
        start: int = 0,
        *,
        unit: str = "round",
        quiet: bool | None = None,
        every: float | None = None,
        share: float = 1.0,
    ):
        bar = has_bars() if quiet is None else not quiet
        self._label, self._total, self._unit, self._share = label, total, unit, share
        self._done = self._before = start
        self._said = ""
        self._every = None if bar or quiet else SECONDS_BETWEEN_LINES if every is None else every
        self._started = time.monotonic()
        self._compiled = False
        timing = "[{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
        layout = f"{{desc}}{{percentage:3.0f}}%|{{bar}}| {unit} {{n_fmt}}/{{total_fmt}} {timing}"
        style = {"unit": f" {unit}s", "smoothing": 0, "dynamic_ncols": True, "bar_format": layout}
        make = _notebook_bar() if bar and in_notebook() else text_bar
        described = f"{label} (compiling)" if unit == "round" else label
        self._bar = make(total=total, initial=start, desc=described, disable=not bar, **style)
        self._inside: Progress | None = None
        self._around = _innermost.get() if self._every else None
        self._ended = threading.Event()
        if self._every:
            _innermost.set(self)
            if self._around is not None:
                self._around._inside = self
            else:
                threading.Thread(target=self._write_lines, name="progress", daemon=True).start()

    def update(self, done: int, said: str | None = None, before: bool = False) -> None:
        """Moves on to ``done`` units.

        Args:
          done: units that are done.
          said: of the evaluation after them; None to say what was said before.
          before: whether they were done before, so that they say nothing about the time left.
        """
        self._said = self._said if said is None else said
        self._before += done - self._done if before else 0
        self._done = done
        if self._every == 0.0:
            print(self._part(), file=sys.stderr, flush=True)
        if not self._compiled:  # compilation says nothing about the speed of later rounds
            self._compiled = True
            self._bar.unpause()
            self._bar.initial = done
        self._bar.set_description(self._label, refresh=False)
        self._bar.set_postfix_str(self._said, refresh=False)
        self._bar.update(done - self._bar.n)
        self._bar.refresh()

    def advance(self, units: int = 1) -> None:
        """Moves on by some units."""
        self.update(self._done + units)

    def note(self, text: str) -> None:
        """Shows a line above the bar, where there is one."""
        if not self._bar.disable:
            self._bar.write(f"{self._label}: {text}", file=sys.stderr)

    def close(self) -> None:
        """Closes the bar, or ends the lines."""
        self._bar.close()
        self._ended.set()
        if self._every:
            _innermost.set(self._around)
        if self._around is not None:
            self._around._inside = None
            self._around._before += self._share * self._before / max(1, self._total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def line(self, now: float) -> str:
        """What is running, from the outermost to the innermost, and the time left.

        Args:
          now: by :func:`time.monotonic`.
        """
        parts, one = [], self
        while one is not None:
            parts.append(one._part())
            one = one._inside
        done, worked = self._fractions()
        left = (now - self._started) * (1.0 - done) / worked if worked > 0.0 else None
        return "; ".join([*parts, *([] if left is None else [f"about {_duration(left)} left"])])

    def _write_lines(self) -> None:
        while not self._ended.wait(self._every):
            try:
                print(self.line(time.monotonic()), file=sys.stderr, flush=True)
            except (OSError, ValueError):  # standard error was closed
                return

    def _part(self) -> str:
        return f"{self._label}: {self._unit} {self._done}/{self._total}" + (self._said and f", {self._said}")

    def _fractions(self) -> tuple[float, float]:
        """The fractions of it that are done, and that were not done before."""
        inside, total = self._inside, max(1, self._total)
        done, worked = (0.0, 0.0) if inside is None else inside._fractions()
        share = 0.0 if inside is None else inside._share
        return (self._done + share * done) / total, (self._done - self._before + share * worked) / total


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


def _duration(seconds: float) -> str:
    """A time for people: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _notebook_bar() -> Any:
    with warnings.catch_warnings():  # without ipywidgets it is a bar of text, which is no fault of the user's
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.auto import tqdm
    return tqdm
