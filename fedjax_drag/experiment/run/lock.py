"""One writer for each results folder.

The lock is the operating system's, on a file in the folder: it is released when the process that holds it ends, however
it ends. On network file systems it is as good as their ``flock``.
"""

import contextlib
import datetime
import json
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from fedjax_drag.experiment.run.errors import FolderError

LOCK, HOLDER = ".lock", ".lock.json"
FILES = (LOCK, HOLDER)
"""The file that is locked, which stays when the lock is released, and the one that says by whom it is held."""


class FolderLock:
    """The right to write into a results folder, from when it is made until :meth:`release`.

    Args:
      folder: the results folder; made here if it is not there.

    Raises:
      FolderError: another process holds the lock, or the folder cannot be written.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._made = tuple(path for path in (folder, *folder.parents) if not path.exists())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / LOCK, thread_local=False)
            self._lock.acquire(blocking=False)
        except Timeout:
            raise FolderError(f"out={str(folder)!r}: in use by {_holder(folder)}; wait for it or stop it") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise FolderError(f"out={str(folder)!r}: cannot be written ({reason}); choose another folder") from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds, others are only not told whose it is
            (folder / HOLDER).write_text(json.dumps(_this_process()), encoding="utf-8")

    def release(self) -> None:
        """Lets others write; a folder that was made for the lock, and that nothing was written into, is removed."""
        if not self._lock.is_locked:
            return
        (self._folder / HOLDER).unlink(missing_ok=True)
        unused = bool(self._made) and self._folder.is_dir() and os.listdir(self._folder) == [LOCK]
        if unused:
            (self._folder / LOCK).unlink()
        self._lock.release()
        for path in self._made if unused else ():
            with contextlib.suppress(OSError):  # somebody else uses it
                path.rmdir()


def remove(folder: Path) -> None:
    """Removes the files of a lock that this process holds, before the folder itself is removed."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def _this_process() -> dict[str, str | int]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "process": os.getpid(), "since": now}


def _holder(folder: Path) -> str:
    """Who holds the lock, as far as it is known."""
    try:
        held = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
        return f"process {held['process']} on {held['host']} since {held['since']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
