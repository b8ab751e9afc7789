"""Which states of a run become checkpoints, and when: held in memory first, then written by a thread of their own.

What is held is what would be kept if the run ended now, the newest states and the best one. It is written when
``every_seconds`` have passed since it was last written, and at the end of the run however it ends, unless the process
is killed: then as much time is lost at most, and the time of one evaluation and of the writing.
"""

import contextlib
import importlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.stored.leaves import on_host
from fedjax_drag.simulation.devices import host_state
from fedjax_drag.simulation.devices.processes import is_first

LARGEST = 2**28
"""Bytes of the states that are held; beyond that they are written at once, and the run waits."""

_thread = ThreadPoolExecutor(1, "checkpoints")  # of all runs; started when the first of them writes


_imports: list[Future[Any]] = []


def import_ahead(name: str) -> None:
    """Imports a module in the thread, so that it is there after the compilation, when it is needed.

    No callback of a run is called before the import is over, so that two threads never import at once what depends on
    each other.
    """
    _imports.append(_thread.submit(importlib.import_module, name))


def _await_imports() -> None:
    while _imports:
        with contextlib.suppress(Exception):  # raised again by who needs the module
            _imports.pop().result()


class Held(NamedTuple):
    """A state that is to be written.

    Attributes:
      round: rounds done.
      state: after them; its buffers may be reused once it is held.
      merit: by which the best is chosen, the highest.
      history: gives the lines of ``metrics.jsonl`` up to the round; called in another thread.
      dtypes: names of those of its columns.
    """

    round: int
    state: Any
    merit: float
    history: Callable[[], bytes]
    dtypes: Mapping[str, str]


class Saver:
    """Writes a run's checkpoints.

    Args:
      checkpoints: of the results folder; this alone writes them.
      keep: how many of the newest states are kept; with 0 nothing is written.
      keep_best: whether the best one is kept as well.
      every_seconds: time between two writings; with 0 each state is on disk when :meth:`hold` returns, with infinity
        :meth:`finish` alone writes.
      best: the highest merit so far; -inf for none.
    """

    def __init__(
        self, checkpoints: Checkpoints, keep: int, keep_best: bool, every_seconds: float, best: float = -np.inf
    ):
        self._checkpoints, self._keep, self._keep_best, self._every = checkpoints, keep, keep_best, every_seconds
        self._best, self._best_round = best, -1
        self._held: list[Held] = []
        self._writing: Future[None] | None = None
        self._last = time.monotonic()
        if keep and is_first():
            import_ahead("orbax.checkpoint")

    def hold(self, one: Held) -> None:
        """Takes over a state after an evaluation; all processes that have parts of it must call.

        Raises:
          Exception: what went wrong while the states before were written.
        """
        _await_imports()
        if not self._keep:
            return
        if self._writing is not None and self._writing.done():
            self._wait()
        if host_state.found_in(one.state) is not None:  # the next round writes into the file
            self.finish()
            _write(self._checkpoints, [one])
            return
        leaves = on_host(one.state)
        if not is_first():
            return
        if self._keep_best and one.merit >= self._best:
            self._best, self._best_round = one.merit, one.round
        self._held.append(one._replace(state=leaves))
        newest = {one.round for one in self._held[-self._keep :]}
        self._held = [one for one in self._held if one.round in newest | {self._best_round}]
        if self._every == 0 or sum(leaf.nbytes for one in self._held for leaf in one.state.values()) > LARGEST:
            self.finish()
            return
        self._held[-1] = self._held[-1]._replace(state={name: np.array(leaf) for name, leaf in leaves.items()})
        if self._writing is None and time.monotonic() - self._last >= self._every:
            self._start()

    def _start(self) -> None:
        """Lets the thread write what is held."""
        held, self._held = self._held, []
        self._last = time.monotonic()
        self._writing = _thread.submit(_write, self._checkpoints, held)

    def _wait(self) -> None:
        """Waits until the thread has written; raises what went wrong there, after which nothing is held."""
        if self._writing is None:
            return
        writing = self._writing
        try:
            writing.result()
        finally:
            if writing.done():  # else Ctrl-C has ended the waiting, and not the writing
                self._writing = None
                self._held = [] if writing.exception() else self._held

    def finish(self) -> None:
        """Writes what is held; it is on disk when this returns.

        Raises:
          Exception: what went wrong; then nothing is held any more.
        """
        self._wait()
        if self._held:
            self._start()
            self._wait()


def _write(checkpoints: Checkpoints, held: list[Held]) -> None:
    for one in held:
        checkpoints.save(one.round, one.state, one.merit, one.history(), one.dtypes)
