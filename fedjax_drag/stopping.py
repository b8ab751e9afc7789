"""Ends a command after Ctrl-C or SIGTERM.

A signal raises no exception, which could come up inside a library. It sets an event that the loops over rounds, cells
and jobs read between two programs (:func:`check`), so that a run ends with all that it has computed on disk. A thread
ends the process where no loop reads the event in time: a program, a compilation or an import is longer than
:data:`GRACE_SECONDS`, or there is nothing to save. A second signal ends it at once. What ends so leaves what a killed
process leaves. Without :func:`listen`, as in a notebook, Ctrl-C is Python's own.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

STATUS = 130
"""Exit status of a process that was stopped."""

GRACE_SECONDS = 1.5
"""Time from the first signal within which a loop must read the event."""

_is_asked = threading.Event()
_is_ending = threading.Event()
_saves = threading.Event()


def listen(last_words: Callable[[], str]) -> None:
    """Takes over SIGINT and SIGTERM, unless they are ignored; called once, in the main thread.

    Args:
      last_words: what the thread writes to standard error before it ends the process.
    """
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    signal.set_wakeup_fd(sending)  # written to whatever the main thread does, also inside a library
    threading.Thread(target=_obey, args=(receiving, last_words), name="signals", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Marks what :func:`check` ends in order; elsewhere the first signal ends the process at once."""
    _saves.set()
    try:
        yield
    finally:
        _saves.clear()


def check(seconds: float = 0.0) -> None:
    """Returns after some time, or raises as soon as a signal has come.

    Raises:
      KeyboardInterrupt: to be caught where what was computed is saved.
    """
    if _is_asked.wait(seconds):
        _is_ending.set()
        raise KeyboardInterrupt


def _obey(receiving: int, last_words: Callable[[], str]) -> None:
    while True:
        if os.read(receiving, 1)[0] not in (signal.SIGINT, signal.SIGTERM):
            continue
        if _is_asked.is_set() or not _saves.is_set():
            _end(last_words)
        _is_asked.set()
        late = threading.Timer(GRACE_SECONDS, lambda: _is_ending.is_set() or _end(last_words))
        late.daemon = True
        late.start()


def _end(last_words: Callable[[], str]) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{last_words()}\n".encode())  # not sys.stderr, which the main thread may hold
    os._exit(STATUS)
