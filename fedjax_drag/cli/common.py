"""Shared by the commands: arguments and options, errors as one line."""

import errno
import glob
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_drag.cli.ending import FAILED, INTERRUPTED, MISUSED, last_words, shares_a_run
from fedjax_drag.experiment.config import shipped
from fedjax_drag.experiment.run.errors import FolderError
from fedjax_drag.files import partial_of

_CONNECTIONS = ("gloo", "nccl", "coordination")
"""Words in JAX's errors about other processes: the links between CPUs and between GPUs, and the service for all."""


def _config_path(context: typer.Context, given: str | None) -> Any:
    """The file of a configuration that was given by its path or its name, looked up before JAX is imported."""
    if given is None or context.resilient_parsing:  # the shell asks for completions
        return given
    with reported(debug=False), user_errors():
        return shipped.find(given)


def _complete_config(incomplete: str) -> list[str]:
    """Configurations of the package, files and folders that begin so."""
    names = [name for name in shipped.paths() if name.startswith(incomplete)]
    here = sorted(glob.glob(f"{glob.escape(incomplete)}*"))
    return [*names, *(os.path.join(path, "") if os.path.isdir(path) else path for path in here)]


def config_argument(of: str) -> Any:
    """The argument CONFIG of a command that takes the configuration of ``of``."""
    help_ = f"YAML file of {of}, or the name of one that 'fedjax-drag configs' lists."
    return typer.Argument(
        metavar="CONFIG", help=help_, show_default=False, callback=_config_path, autocompletion=_complete_config
    )


_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)
"""Error numbers of what is no path of a file."""

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")]
DebugNans = Annotated[bool, typer.Option("--debug-nans", help="Fail at the first NaN; slower.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run code that CONFIG refers to; what KEY=VALUE refers to runs anyhow.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


class MisuseError(Exception):
    """An error in what the user gave."""


@contextmanager
def user_errors() -> Iterator[None]:
    """Marks errors inside as the user's."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        raise MisuseError(str(error)) from error
    except OSError as error:
        if error.errno not in _NO_PATH:
            raise
        raise MisuseError(f"{error.filename!r:.200}: {error.strerror}") from error


def _not_empty(text: str) -> Path:
    """A path; an empty one would be the current folder."""
    with reported(debug=False):
        if not text:
            raise MisuseError("--out='': must be the path of a folder")
    return Path(text)


OutFolder = Annotated[
    Path | None,
    typer.Option(
        parser=_not_empty,
        metavar="PATH",
        help="Results folder; default runs/NAME, after the configuration and its changes.",
    ),
]


def _well_formed(context: typer.Context, changes: list[str] | None) -> list[str] | None:
    """Refuses a change that is no KEY=VALUE or names an option of the command, such as ``out=x``; returns all."""
    if context.resilient_parsing or not changes:
        return changes
    options = {option.name: option for option in context.command.params if option.opts[0].startswith("-")}
    with reported(debug=False), user_errors():
        for change in changes:
            key, _, value = change.partition("=")
            if option := options.get(key):
                is_flag = getattr(option, "is_flag", False)
                meant = option.opts[0] if is_flag else f"{option.opts[0]} {shlex.quote(value)}"
                raise MisuseError(f"{change}: an option, not a key of the configuration; did you mean {meant}?")
        from fedjax_drag.experiment.config.yaml_text import parse

        parse(changes)
    return changes


def _complete_key(incomplete: str) -> list[str]:
    """Keys of the package's configurations that begin so."""
    texts = (path.read_text(encoding="utf-8") for path in shipped.paths().values())
    keys = {line.partition(":")[0] for text in texts for line in text.splitlines() if line[:1].isalpha()}
    return [f"{key}=" for key in sorted(keys - {"name"}) if key.startswith(incomplete)]


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Changes to it.",
        show_default=False,
        callback=_well_formed,
        autocompletion=_complete_key,
    ),
]


@contextmanager
def writes(option: str, path: Path | None) -> Iterator[None]:
    """Marks an output that cannot be written as the user's error; what is wrong with other files passes."""
    try:
        yield
    except OSError as error:
        if path is None or error.errno is None or error.filename is None:
            raise
        at = Path(error.filename)
        if path not in at.parents and at not in {path, partial_of(path), *path.parents}:
            raise
        reason = f"{error.strerror}: {error.filename!r}"
        raise MisuseError(f"{option}={str(path)!r}: cannot be written ({reason}); choose another place") from error


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Turns an exception into one line on standard error and an exit status, and a warning into one line."""
    try:
        with _warnings_in_one_line():
            yield
    except KeyboardInterrupt:
        typer.echo(last_words(), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        misused = isinstance(error, MisuseError | FolderError)
        kind = "" if misused else f"the run failed: {type(error).__name__}: "
        hint = "" if misused or debug else " (--debug shows where)"
        text = f"{kind}{_printable(next(iter(str(error).strip().splitlines()), 'no message'))}{hint}"
        if has_lost_a_process(error):
            text = "another process of this run ended; run all again with --resume"
        typer.echo(f"fedjax-drag: error: {text}", err=True)
        raise typer.Exit(MISUSED if misused else FAILED) from None


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Shows the package's own warnings without the place in the code, which says nothing to a user of the command."""

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        if category is UserWarning:
            typer.echo(f"fedjax-drag: warning: {_printable(str(message))}", err=True)
        else:
            usual(message, category, *rest)

    usual = warnings.showwarning
    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def has_lost_a_process(error: BaseException) -> bool:
    """Whether a run of several processes failed because another of them has ended.

    JAX has no exception of its own for that; the error's text names what connects the processes.
    """
    if not shares_a_run():
        return False
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__
    raised_by_jax = [str(cause) for cause in causes if isinstance(cause, sys.modules["jax"].errors.JaxRuntimeError)]
    return any(name in text.lower() for name in _CONNECTIONS for text in raised_by_jax)


def start_devices(here: bool = True) -> None:
    """Starts JAX, every core of a CPU as a device, with compiled programs kept; not the devices where jobs compute."""
    from fedjax_drag.cores import one_device_per_core, start
    from fedjax_drag.simulation.devices.compilation_cache import keep_compiled

    keep_compiled()
    one_device_per_core()
    if here:
        start()


def nan_checks(for_nans: bool) -> AbstractContextManager[Any]:
    """With ``for_nans`` JAX raises an exception where a program returns a NaN."""
    if not for_nans:
        return nullcontext()
    import jax

    return jax.debug_nans(True)


def _printable(text: str) -> str:
    """A message without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
