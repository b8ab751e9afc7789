"""Into which folders a run may write, in which it may go on, and what it removes there."""

import contextlib
import os
import shutil
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.config.config import Config, flatten, slug
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.run import environment, lock, results
from fedjax_drag.experiment.run.environment import ENVIRONMENT
from fedjax_drag.experiment.run.errors import FolderError
from fedjax_drag.experiment.run.metrics_file import METRICS
from fedjax_drag.files import check_kinds, fitting
from fedjax_drag.simulation.model import initial_params

FREE = (
    *("keep_checkpoints", "keep_best", "checkpoint_every_seconds", "stop_on_divergence", "time_clients"),
    *("patience", "stop_when"),
)
"""Keys that may change when a run is resumed: they decide what is kept or measured, and where it ends."""

REMEDY = "choose --resume, --overwrite or another --out (in Python resume=True, overwrite=True or another out)"
"""What to do about a folder that already holds a run."""


def folder_of(out: Any, resume: bool = False, overwrite: bool = False) -> Path | None:
    """The results folder that the argument ``out`` names, or None.

    Args:
      out: the argument.
      resume: whether what is in it is to be continued.
      overwrite: whether what is in it is to be replaced.

    Raises:
      ValueError: it is neither the path of a folder nor None, empty, which would be the current folder, or too long; it
        is None and there is something to resume or to overwrite; or both are asked for.
    """
    if resume and overwrite:
        raise ValueError("resume and overwrite: only one of them can be asked for")
    if out is None and not (resume or overwrite):
        return None
    if out is None:
        raise ValueError("out=None: resume and overwrite need the results folder")
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise ValueError(f"out={out!r}: must be the path of a folder, or None")
    folder = fitting("out", Path(out))
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={str(folder)!r}: must be a folder, and this is a file")
    return folder


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder in which a run may not write; changes nothing.

    Args:
      folder: from :func:`folder_of`.
      resume: whether a run in it is to be continued; where there is nothing yet, one begins.
      overwrite: whether a run in it is to be replaced.

    Raises:
      ValueError: the folder holds a run and neither was asked for; it holds something else to resume; or
        what is to be overwritten is not a results folder.
    """
    where, others = f"out={str(folder)!r}", holds_others(folder)
    if any((folder / name).is_file() for name in (results.SWEEP, results.STANDING)):
        raise ValueError(f"{where}: holds a sweep or an arena; choose another folder")
    if resume and others and not ((folder / results.CONFIG).is_file() or (folder / results.CHECKPOINTS).is_dir()):
        raise ValueError(f"{where}: holds no run to resume")
    if resume:
        check_kinds(folder, results.FILES, (results.CHECKPOINTS, results.DAMAGED_CHECKPOINTS, results.LOGS))
    if overwrite and others and not _is_results_folder(folder):
        raise ValueError(f"{where}: not a results folder, so it is not overwritten")
    if not (resume or overwrite) and any((folder / name).exists() for name in results.WRITTEN):
        raise ValueError(f"{where}: already holds a run; {REMEDY}")


def holds_others(folder: Path, *names: str) -> bool:
    """Whether there is anything in a folder but a lock, these names and what a killed process had begun to write."""
    others = {path.name for path in folder.iterdir() if path.suffix != ".partial"} if folder.is_dir() else set()
    return not others <= {*lock.FILES, *names}


def check_same(folder: Path, config: Config) -> None:
    """Refuses to resume a run under another configuration.

    Only ``rounds`` may have grown; keys that do not affect the results may differ. Keys and arguments that an older
    stored configuration lacks take their defaults. Without a stored configuration nothing is compared.

    Raises:
      FolderError: the stored configuration cannot be read.
      ValueError: names the first difference.
    """
    _check_jax(folder)
    path = folder / results.CONFIG
    if not path.is_file():
        return
    if path.read_bytes() != written(config.to_mapping()).encode():
        try:
            stored = resolve(load(path))
        except ValueError as error:
            remedy = f"to go on under the configuration that is given, remove that {results.CONFIG}"
            raise FolderError(f"the run to resume in {str(folder)!r}: {error}; {remedy}") from None
        if (found := first_difference(stored, config)) is not None:
            key, old, new = found
            must = f"the run to resume in {str(folder)!r} has {key}={old!r}; must be that"
            raise ValueError(f"{key}={new!r}: {must}{' or more' if key == 'rounds' else ''}")
    _warn_of_changed_files(folder, config)


def first_difference(before: Config, config: Config) -> tuple[str, Any, Any] | None:
    """The first key by which two resolved configurations are of different runs, its old and its new value."""
    stored, wanted = flatten(before), flatten(config)
    for key in [*wanted, *(key for key in stored if key not in wanted)]:
        old, new = stored.get(key), wanted.get(key)
        if old != new and key not in FREE and not (key == "rounds" and config.rounds > stored["rounds"]):
            return key, old, new
    return None


def _check_jax(folder: Path) -> None:
    """Refuses to go on with a run under other options of JAX; those that its record lacks are not compared."""
    stored = environment.read(folder).get("jax_options")
    stored = stored if isinstance(stored, dict) else {}
    for name, value in environment.jax_options().items():
        if stored.get(name, value) != value:
            raise ValueError(
                f"{name.upper()}={value}: the run to resume in {str(folder)!r} has {stored[name]!r:.40}; must be that"
            )


def _warn_of_changed_files(folder: Path, config: Config) -> None:
    """Warns if a file or an object that a configuration refers to is not what it was when the run began."""
    then = environment.read(folder)
    for kind, files in environment.files_of(config).items():
        before = then.get(kind)
        for path, checksum in files.items():
            if isinstance(before, dict) and before.get(path, checksum) != checksum:
                warnings.warn(f"{path} has changed since the run in {str(folder)!r} began", stacklevel=2)


def variants_in(folder: Path) -> set[str]:
    """The names of the folders of the comparison that is in a folder; empty if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return set(map(slug, load(folder / results.CONFIG).compare or {}))
    return set()


def check_start(folder: Path, configs: Iterable[Config]) -> None:
    """Refuses to overwrite a folder that has the parameters with which a run is to begin.

    Raises:
      ValueError: naming them.
    """
    for config in configs:
        start = config.initial_params
        if start is not None and Path(initial_params.located(start)).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"initial_params={start!r}: lies in out={str(folder)!r}, which would be overwritten")


def clear(folder: Path, inner: Collection[str] | None = ()) -> None:
    """Removes what a run wrote in a folder, and in the runs inside it, whose folders go if nothing else is in them.

    Args:
      folder: of the run.
      inner: names of the folders of the runs inside, variants or cells; None for all.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        named = inner is None or path.name in inner
        if named and path.is_dir() and not path.is_symlink() and _is_results_folder(path):
            with lock.FolderLock(path) as writing:
                clear(path)
                writing.release(remove=True)
    for name in (*results.WRITTEN, results.DAMAGED_CHECKPOINTS, results.REPORT, results.LOGS):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _is_results_folder(folder: Path) -> bool:
    return (folder / results.CONFIG).is_file() and ((folder / ENVIRONMENT).is_file() or (folder / METRICS).is_file())
