"""How a command ends: its exit status, and what it says when it was stopped."""

import os
import shlex
import sys
from typing import Any

from fedjax_drag import stopping

FAILED, MISUSED, INTERRUPTED = 1, 2, stopping.STATUS
"""Exit statuses beside 0: the run failed; bad usage or configuration; stopped by Ctrl-C or SIGTERM."""


def last_words() -> str:
    """What a stopped command says: the command that goes on from there, if there is one."""
    command, *rest = sys.argv[1:] or [""]
    if command in ("run", "sweep"):
        rest = [*(argument for argument in rest if argument not in ("--overwrite", "--resume")), "--resume"]
    elif command != "arena":
        return "stopped"
    return f"stopped; to go on: {shlex.join(['fedjax-drag', command, *rest])}"


def shares_a_run() -> bool:
    """Whether this process is one of several that compute one run."""
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def exit_now(status: Any) -> None:
    """Ends a process at once that was stopped, or that has failed and shares a run with others.

    A normal exit would wait for threads of a stopped run, and minutes for other processes as they would for it.
    """
    if status != INTERRUPTED and (status in (None, 0) or not shares_a_run()):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else FAILED)
