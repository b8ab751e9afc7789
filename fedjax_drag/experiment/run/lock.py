"""One writer for each results folder.

The lock is the operating system's, on a file in the folder: it is released when the process that holds it ends, however
it ends. On network file systems it is as reliable as their ``flock``.
"""

import contextlib
import datetime
import itertools
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from fedjax_drag import stopping
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.errors import FolderError, InUseError
from fedjax_drag.files import check_kinds, read_json, strangers, write_text
from fedjax_drag.simulation.devices.processes import from_first

_POLL_SECONDS, _SILENT_TRIES = 0.2, 5
"""Between two tries of a process that waits for a lock, and how many it makes before it says so."""

LOCK, HOLDER = ".lock", ".lock.json"
FILES = (LOCK, HOLDER)
"""The file that is locked, which stays when the lock is released, and the one that names the process holding it."""


class FolderLock:
    """The right to write into a results folder, from its construction until :meth:`release` or the end of a block.

    Args:
      folder: the results folder; made here if it does not exist.

    Raises:
      FolderError: another process holds the lock, or the folder cannot be written.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._made = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_kinds(folder, FILES)
            inner = (folder / name for name in (results.LOGS, results.CELLS, results.DAMAGED_CHECKPOINTS))
            refuse_links(folder, *inner, *(folder / results.CHECKPOINTS).glob("**/"))
            self._lock = FileLock(folder / LOCK, thread_local=False)
            self._lock.acquire(blocking=False)
        except Timeout:
            raise InUseError(f"out={str(folder)!r}: in use by {_holder(folder)}; wait for it or stop it") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise FolderError(f"out={str(folder)!r}: cannot be written ({reason}); choose another folder") from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds, only its holder's name is missing
            since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            holder = {"host": socket.gethostname(), "process": os.getpid(), "since": since}
            write_text(folder / HOLDER, json.dumps(holder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def release(self, remove: bool = False) -> None:
        """Lets others write. A folder that was made for the lock and is still empty is removed.

        Args:
          remove: whether the folder is removed if it is empty, whoever has made it.
        """
        if not self._lock.is_locked:
            return
        (self._folder / HOLDER).unlink(missing_ok=True)
        removed = self._made or ([self._folder] if remove else [])
        if not self._folder.is_dir() or os.listdir(self._folder) != [LOCK]:
            removed = []
        if removed:
            (self._folder / LOCK).unlink()
        self._lock.release()
        for path in removed:
            with contextlib.suppress(OSError):  # another process uses it
                path.rmdir()


def waited_for(folder: Path) -> FolderLock:
    """The lock of a folder, as soon as no other process holds it; after some time a line says that this one waits.

    Raises:
      FolderError: the folder cannot be written.
      KeyboardInterrupt: stopped by a signal.
    """
    for tries in itertools.count():
        try:
            return FolderLock(folder)
        except InUseError as error:
            if tries == _SILENT_TRIES:
                print(f"fedjax-drag: {error}; waiting", file=sys.stderr, flush=True)
            stopping.check(_POLL_SECONDS)
    raise AssertionError


def refuse_links(*places: Path) -> None:
    """Refuses folders in which a run would read or write elsewhere; those that do not exist pass.

    Raises:
      FolderError: an entry of one of them is a link, or neither a file nor a folder.
    """
    for place in places:
        for path in strangers(place) if place.is_dir() else ():
            kind = "a link" if path.is_symlink() else "neither a file nor a folder"
            raise FolderError(f"{str(path)!r}: {kind}; a folder into which a run writes must have none: remove it")


@contextlib.contextmanager
def locked(folder: Path | None, check: Callable[[Path], Any] = lambda _: None) -> Iterator[None]:
    """Holds the lock of a results folder that has passed a check.

    Args:
      folder: the results folder to be. None locks nothing, nor does any but the first of several processes.
      check: ``(folder) -> None`` raises an error if the folder is not fit. It is called before the folder is made, and
        once more when it is locked: another process may have written there in between.
    """

    def take(folder: Path) -> None:
        try:
            check(folder)
        except ValueError:
            if (folder / HOLDER).is_file():  # another process may just have begun there: that is the reason to name
                FolderLock(folder).release()
            raise
        held.enter_context(FolderLock(folder))
        check(folder)

    with contextlib.ExitStack() as held:
        if folder is not None:
            from_first(take, folder)
        yield


def _holder(folder: Path) -> str:
    """The process that holds the lock, as far as it is known."""
    try:
        held = read_json(folder / HOLDER)
        return f"process {held['process']} on {held['host']} since {held['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
