"""Compiled programs kept on disk, in JAX's persistent compilation cache, so that they start at once.

JAX runs whatever it reads there. Therefore the folder is the user's alone, belongs to one version of JAX and one kind
of processor, and every file is verified before JAX sees it: a manifest has the SHA-256 of each file by its name. What
is damaged, under another name, or unlisted is removed, and so is compiled again.

A process lists its files when it ends. Those of a process that was killed, or still runs, are unlisted: the next
process to start removes them, which costs a compilation and nothing else.
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

MANIFEST = "manifest.json"

LARGEST = 2**28
"""Bytes kept, the newest programs first; this also bounds the time of verification."""


def keep_compiled() -> None:
    """Lets JAX keep compiled programs in the cache folder of :mod:`fedjax_drag.data.formats.cache`.

    A folder that others may write, or that belongs to somebody else, is not used: a line on standard error says so. A
    folder that the user has told JAX about (``JAX_COMPILATION_CACHE_DIR``) is left to JAX, unverified.
    """
    import jax  # here, since it takes seconds to import

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
    atexit.register(record, folder)


def verify(folder: Path) -> None:
    """Removes every file that is not what the manifest says, and the oldest beyond :data:`LARGEST` bytes."""
    listed, size = _listed(folder), 0
    verified: dict[str, str] = {}
    for path in _newest_first(folder):
        name = _name(folder, path)
        with suppress(FileNotFoundError):  # removed by another process just now
            further = path.lstat().st_size
            if size + further <= LARGEST and _is_own(path) and listed.get(name) == _checksum(path):
                verified[name], size = listed[name], size + further
            else:
                path.unlink()
    if verified != listed:
        _list(folder, verified)


def record(folder: Path) -> None:
    """Lists the files that are new; of those listed before, what the manifest says stays."""
    with suppress(OSError):  # no space, or the folder is gone: the programs are compiled again
        listed = _listed(folder)
        found = {_name(folder, path): path for path in _newest_first(folder)}
        current = {name: listed.get(name) or _checksum(path) for name, path in found.items()}
        if current != listed:
            _list(folder, current)


def refusal(folder: Path) -> str | None:
    """Why programs in ``folder``, which exists, may not be trusted; None if they may."""
    state = folder.stat()
    if not _is_own(folder.resolve()):
        return f"{str(folder)!r} belongs to another user; name a folder of your own in FEDJAX_DRAG_CACHE"
    if os.name == "posix" and state.st_mode & 0o022:
        mode = f"mode {state.st_mode & 0o7777:04o}"
        return f"others may write {str(folder)!r} ({mode}); run chmod 700 {str(folder)!r}"
    return None


def _prepare(base: Path, folder: Path) -> str | None:
    """Makes the folder and verifies what is in it, unless it is refused, for the reason that is returned."""
    for place in (base, folder):
        make_private(place)
        reason = refusal(place)
        if reason:
            return reason
    verify(folder)
    return None


def _kind() -> str:
    """A short name for what compiled programs depend on: versions, and the instructions of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        features = platform.processor()
    kind = [version("jax"), version("jaxlib"), platform.machine(), features]
    return hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:16]


def _listed(folder: Path) -> dict[str, str]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if not _is_own(folder / MANIFEST):
            return {}
        return {str(name): str(checksum) for name, checksum in manifest.items()}
    except (OSError, ValueError, AttributeError, RecursionError):  # whatever is wrong with it: nothing is listed
        return {}


def _list(folder: Path, checksums: Mapping[str, str]) -> None:
    """Writes beside the manifest, then renames: another process sees the old one or the new one."""
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".manifest-", delete=False) as stream:
        json.dump(checksums, stream)
    os.replace(stream.name, folder / MANIFEST)


def _newest_first(folder: Path) -> list[Path]:
    """All files but the manifest and what JAX notes beside its entries (lock, times of use), which it does not run."""
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
    if path.is_symlink():
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
