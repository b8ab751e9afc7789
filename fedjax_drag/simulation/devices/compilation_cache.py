"""Compiled programs kept on disk in JAX's persistent compilation cache, so that runs start without compiling.

JAX executes every file that it reads there. The folder therefore belongs to the user alone, to one version of JAX and
to one kind of processor, and every file is verified before JAX reads it: a manifest has the SHA-256 of each file by its
name. Files that are damaged, renamed or unlisted are removed, and their programs compiled again.

A process lists its files when it ends. Files of a process that was killed, or is still running, are unlisted: the next
process to start removes them, which costs one compilation.
"""

import atexit
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from fedjax_drag.data.formats.cache import cache_folder, make_private
from fedjax_drag.files import read_json, sha256

MANIFEST = "manifest.json"

SHORTEST = 0.1
"""Seconds of compilation from which a program is kept, where the user has not said so for JAX."""

_JAX_SHORTEST = 1.0  # JAX's own default: less than the programs of a small run take

LARGEST = 2**28
"""Bytes kept, newest programs first; also bounds the time of verification."""


def keep_compiled() -> None:
    """Lets JAX keep compiled programs in the cache folder of :mod:`fedjax_drag.data.formats.cache`.

    The command line calls it. In Python it must be called, before the first run, because it concerns all that the
    process compiles with JAX, and because programs are executed as they are read: nobody should find out later.

    A folder that other users may write, or that belongs to another user, is refused with a line on standard error. A
    folder that the user has set for JAX (``JAX_COMPILATION_CACHE_DIR``) is left to JAX, unverified.

    Examples:
      >>> fd.simulation.keep_compiled()  # doctest: +SKIP
    """
    import jax  # not at the top: the import takes seconds

    base = cache_folder()
    if base is None or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = base / f"compiled-{_kind()}"
    try:
        reason = _prepare(base, folder)
    except OSError as error:
        reason = f"{str(folder)!r}: {error.strerror}"
    if reason:
        print(f"fedjax-drag: warning: compiled programs are not kept: {reason}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if jax.config.values["jax_persistent_cache_min_compile_time_secs"] == _JAX_SHORTEST:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    atexit.register(record, folder)


def verify(folder: Path) -> None:
    """Removes every file that does not match the manifest, and the oldest ones beyond :data:`LARGEST` bytes."""
    listed, size = _listed(folder), 0
    verified: dict[str, str] = {}
    for path in _newest_first(folder):
        name = _name(folder, path)
        with suppress(FileNotFoundError):  # removed by another process just now
            further = path.lstat().st_size
            kept = size + further <= LARGEST and _is_own(path) and not path.is_symlink()
            if kept and listed.get(name) == _checksum(path):
                verified[name], size = listed[name], size + further
            else:
                path.unlink()
    if verified != listed:
        _list(folder, verified)


def record(folder: Path) -> None:
    """Adds new files to the manifest; entries of listed files stay as they are."""
    with suppress(OSError):  # no space, or the folder is gone: the programs are compiled again
        listed = _listed(folder)
        files = {_name(folder, path): path for path in _newest_first(folder)}
        current = {name: listed.get(name) or _checksum(path) for name, path in files.items()}
        if current != listed:
            _list(folder, current)


def refusal(folder: Path) -> str | None:
    """The reason not to trust programs in an existing folder; None if there is none."""
    state = folder.stat()
    if not _is_own(folder.resolve()):
        return f"{str(folder)!r} belongs to another user; name a folder of your own in FEDJAX_DRAG_CACHE"
    if os.name == "posix" and state.st_mode & 0o022:
        mode = f"mode {state.st_mode & 0o7777:04o}"
        return f"others may write {str(folder)!r} ({mode}); run chmod 700 {str(folder)!r}"
    return None


def _prepare(base: Path, folder: Path) -> str | None:
    """Creates the folder and verifies its files; returns the reason if the folder is refused, else None."""
    for place in (base, folder):
        make_private(place)
        reason = refusal(place)
        if reason:
            return reason
    verify(folder)
    return None


def _kind() -> str:
    """A short name of everything that compiled programs depend on: versions, and the processor's instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        features = platform.processor()
    kind = [version("jax"), version("jaxlib"), platform.machine(), features]
    return hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:16]


def _listed(folder: Path) -> dict[str, str]:
    try:
        manifest = read_json(folder / MANIFEST)
        if not _is_own(folder / MANIFEST):
            return {}
        return {str(name): str(checksum) for name, checksum in manifest.items()}
    except (OSError, ValueError, AttributeError):  # of a damaged manifest nothing is listed
        return {}


def _list(folder: Path, checksums: Mapping[str, str]) -> None:
    """Writes a temporary file, then renames it: another process reads the old manifest or the new one."""
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".manifest-", delete=False) as stream:
        json.dump(checksums, stream)
    os.replace(stream.name, folder / MANIFEST)


def _newest_first(folder: Path) -> list[Path]:
    """All files but the manifest and JAX's own notes (a lock, ``-atime`` files), which it does not execute."""
    times: dict[Path, float] = {}
    for path in folder.rglob("*"):
        hidden = path.name.startswith(".") or path.name.endswith("-atime")
        if path.name != MANIFEST and not hidden and (path.is_file() or path.is_symlink()):
            with suppress(FileNotFoundError):
                times[path] = path.lstat().st_mtime
    return sorted(times, key=lambda path: -times[path])


def _is_own(path: Path) -> bool:
    """Whether a file or folder, or a link itself, belongs to the user."""
    return not hasattr(os, "geteuid") or path.lstat().st_uid == os.geteuid()


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def _checksum(path: Path) -> str:
    """SHA-256 of a file; empty for a link, which is not followed."""
    return "" if path.is_symlink() else sha256(path)
