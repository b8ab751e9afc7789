"""Decoded arrays kept on disk, so that files are unpacked and parsed once."""

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT_VARIABLE = "FEDJAX_DRAG_CACHE"
_MANIFEST = "manifest.json"
_CHUNK = 1 << 20

_may_keep = ContextVar("may_keep", default=True)

Arrays = dict[str, np.ndarray]


def cached(name: str, sources: Sequence[Path], read: Callable[[], Arrays], version: Any = 1) -> Arrays:
    """The arrays that ``read`` returns, from the cache if they were read before.

    The cache is the user's cache folder of this platform, or the folder in the environment variable
    ``FEDJAX_DRAG_CACHE``; if that is set and empty, nothing is kept. A new folder is private to the user. It
    may be deleted at any time. A cache that is damaged, of other files or not writable is no error: the arrays are then
    read again.

    Args:
      name: of the data set; a file name.
      sources: the files that ``read`` reads; the cache is valid while their path, size and time of change stay.
      read: ``() -> arrays by name``; names are identifiers, arrays hold plain numbers.
      version: all else on which the result depends, as JSON: a number, a text, or lists and dicts of them.

    Returns:
      The arrays, C-contiguous; to be read only.
    """
    folder = cache_folder()
    place, key = (None, "") if folder is None else _address(folder, name, sources, version)
    arrays = _recall(place, key) if place else None
    if arrays is None:
        arrays = {entry: np.asarray(values, order="C") for entry, values in read().items()}
        if place and _may_keep.get():
            _keep(place, key, arrays)
    return arrays


@contextmanager
def kept_as_it_is() -> Iterator[None]:
    """Within it, nothing is added to the cache."""
    before = _may_keep.set(False)
    try:
        yield
    finally:
        _may_keep.reset(before)


def _address(folder: Path, name: str, sources: Sequence[Path], version: Any) -> tuple[Path, str]:
    """The folder of the arrays, and the key under which they are valid there.

    The folder does not depend on the state of the files: after a change, new arrays replace the old ones.
    """
    identity = json.dumps([name, version, [os.path.realpath(path) for path in sources]], sort_keys=True)
    states = [os.stat(path) for path in sources]
    key = json.dumps([identity, [[state.st_size, state.st_mtime_ns] for state in states]])
    return folder / f"{name}-{zlib.crc32(identity.encode()):08x}", key


def cache_folder() -> Path | None:
    """The folder of the cache; None if nothing is to be kept."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen is not None:
        return Path(os.path.expanduser(chosen)) if chosen else None
    import platformdirs  # here, because few commands need it

    return platformdirs.user_cache_path("fedjax_drag")


def make_private(folder: Path) -> None:
    """Makes a folder, unless it exists, that only the user may read or write, independent of the umask.

    Raises:
      OSError: it cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        folder.chmod(0o700)


def _recall(place: Path, key: str) -> Arrays | None:
    """The arrays kept at ``place``, or None unless they are whole and belong to ``key``."""
    try:
        manifest = json.loads((place / _MANIFEST).read_text())
        if manifest["key"] != key:
            return None
        return {entry: _load(place / f"{entry}.npy", checksum) for entry, checksum in manifest["arrays"].items()}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # damaged in any way
        return None


def _load(path: Path, checksum: int) -> np.ndarray:
    """An array; its file is verified before it is parsed."""
    if _checksum(path) != checksum:
        raise ValueError(f"{path}: damaged")
    return np.load(path, allow_pickle=False)


def _keep(place: Path, key: str, arrays: Arrays) -> None:
    """Writes to a temporary folder, then renames it: another process sees all or nothing."""
    temporary = None
    try:
        make_private(place.parent)
        temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix=".temporary-"))
        new, old = temporary / "new", temporary / "old"
        make_private(new)
        for entry, values in arrays.items():
            np.save(new / f"{entry}.npy", values, allow_pickle=False)
        checksums = {entry: _checksum(new / f"{entry}.npy") for entry in arrays}
        (new / _MANIFEST).write_text(json.dumps({"key": key, "arrays": checksums}))
        if os.path.lexists(place):  # the target of a renamed folder must not exist
            place.rename(old)
        new.rename(place)
    except OSError:  # no space, no permission, or another process was faster: nothing is kept
        pass
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _checksum(path: Path) -> int:
    """CRC-32 of a file: fast, and enough against damage; it does not protect against manipulation."""
    checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
