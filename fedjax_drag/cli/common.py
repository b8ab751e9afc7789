"""What the commands have in common: how help is laid out, and how errors are told."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer

from fedjax_drag.experiment.run.errors import FolderError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit statuses beside 0: the run failed; bad usage or configuration; stopped by Ctrl-C."""

_CONNECTIONS = ("gloo", "nccl", "coordination")
"""What connects processes, as JAX's errors name it: between CPUs, between GPUs, and the service for all of them."""

Command = TypeVar("Command", bound=Callable[..., Any])


def laid_out(command: Command) -> Command:
    r"""Makes each ``\b`` of a docstring the character after which help keeps the lines of a paragraph."""
    command.__doc__ = (command.__doc__ or "").replace("\\b", "\b")
    return command


class MisuseError(Exception):
    """What is wrong lies in what the user gave."""


@contextmanager
def misuse() -> Iterator[None]:
    """Marks errors inside as the user's."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        raise MisuseError(str(error)) from error


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Turns an exception into one line on standard error and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        misused = isinstance(error, MisuseError | FolderError)
        kind = "" if misused else f"the run failed: {type(error).__name__}: "
        hint = "" if misused or debug else " (--debug shows where)"
        text = f"{kind}{_printable(next(iter(str(error).strip().splitlines()), ''))}{hint}"
        if has_lost_a_process(error):
            text = "another process of this run ended; run all again with --resume"
        typer.echo(f"fedjax-drag: error: {text}", err=True)
        raise typer.Exit(MISUSED if misused else FAILED) from None


def has_lost_a_process(error: BaseException) -> bool:
    """Whether a run of several processes failed because another of them has ended.

    JAX has no exception of its own for that; the error's text names what connects the processes.
    """
    if not _shares_a_run():
        return False
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__
    raised_by_jax = [str(cause) for cause in causes if isinstance(cause, sys.modules["jax"].errors.JaxRuntimeError)]
    return any(name in text.lower() for name in _CONNECTIONS for text in raised_by_jax)


def _shares_a_run() -> bool:
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


@contextmanager
def watched(for_nans: bool) -> Iterator[None]:
    """Lets JAX look at all that a program returns, and raise an exception where it is not a number."""
    if not for_nans:
        yield
        return
    import jax

    with jax.debug_nans(True):
        yield


def _printable(text: str) -> str:
    """A message as it may be shown: what was wrong may be what a terminal obeys."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def abandon(status: Any) -> None:
    """Ends a process that has failed, if it shares a run with others, at once.

    At a usual exit it would wait minutes for the others, and they for it.
    """
    if status in (None, 0) or not _shares_a_run():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else FAILED)
