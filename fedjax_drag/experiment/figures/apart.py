"""Drawing in a process of its own, which has imported matplotlib while a command was computing.

The import takes more than a second of a core, as does drawing the first figure, and it would stop the threads that
start the rounds.
"""

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedjax_drag.experiment.figures.contents import Contents

_SERVE = f"import {__name__} as apart; apart.serve()"

_waiting: list[subprocess.Popen[bytes]] = []  # at most one


@contextlib.contextmanager
def ready() -> Iterator[None]:
    """The first figure inside is drawn by a process that starts now, unless this one has imported matplotlib."""
    if not _is_imported():
        path = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-P", "-c", _SERVE]
        # A session of its own: Ctrl-C is for this process, at whose end the other one reads the end of its input.
        with contextlib.suppress(OSError):
            _waiting.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | {"PYTHONPATH": path},
                    start_new_session=True,
                )
            )
    try:
        yield
    finally:
        for process in _waiting:
            process.kill()
            process.communicate()
        _waiting.clear()


def save(contents: "Contents", path: Path) -> None:
    """Writes the figure to an image, in the process that is ready if there is one, else or if that fails in this one.

    Args:
      contents: what it shows.
      path: of the image; its suffix is the format.
    """
    if _waiting:
        process = _waiting.pop()
        process.communicate(pickle.dumps((contents, path.absolute())))
        if process.returncode == 0:
            return
    from fedjax_drag.experiment.figures import drawing  # imports matplotlib

    drawing.save(contents, path)


def serve() -> None:
    """Imports matplotlib, then draws what comes on standard input, once."""
    from fedjax_drag.experiment.figures import drawing

    drawing.save(*pickle.load(sys.stdin.buffer))


def _is_imported() -> bool:
    """Whether this process has matplotlib already."""
    return "matplotlib" in sys.modules
