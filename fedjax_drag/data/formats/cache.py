"""Decoded arrays kept on disk, so that large files are unpacked and parsed once."""

import json
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedjax_drag.files import replaced

ENVIRONMENT_VARIABLE = "FEDJAX_DRAG_CACHE"

_READERS = 3
"""Version of the readers: with another one, files are read again."""

Arrays = dict[str, np.ndarray]


def cached(name: str, sources: Sequence[Path], read: Callable[[], Arrays]) -> Arrays:
    """The arrays that ``read`` returns, from the cache if they were read before.

    The cache is the user's cache folder of this platform, or the folder in the environment variable
    ``FEDJAX_DRAG_CACHE``; if that is set and empty, nothing is kept. A new folder is private to the user. It
    may be deleted at any time. A cache that is damaged, of other files or not writable is no error: the arrays are then
    read again.

    Args:
      name: of the data set; a file name.
      sources: the files that ``read`` reads; the cache is valid while their path, size and time of change stay.
      read: ``() -> arrays by name``; names are identifiers, arrays hold plain numbers.

    Returns:
      The arrays, C-contiguous; to be read only.
    """
    folder = cache_folder()
    paths = [os.path.realpath(path) for path in sources]
    states = [(state.st_size, state.st_mtime_ns) for state in map(os.stat, paths)]
    key = json.dumps([_READERS, name, paths, states])
    place = None if folder is None else folder / f"{name}-{zlib.crc32(json.dumps(paths).encode()):08x}.npz"
    arrays = place and _recall(place, key)
    if arrays:
        return arrays
    arrays = {entry: np.asarray(values, order="C") for entry, values in read().items()}
    if place:
        with suppress(OSError):  # no space, no permission, or another process was faster: nothing is kept
            make_private(place.parent)
            with replaced(place) as stream:
                np.savez(stream, allow_pickle=False, key=np.array([key, *arrays]), **arrays)
    return arrays


def _recall(place: Path, key: str) -> Arrays | None:
    """The arrays kept at ``place``, or None unless they are whole and belong to ``key``."""
    # A damaged archive may raise any error.
    with suppress(Exception), place.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
        own, *entries = kept["key"]
        if own == key and kept.zip.testzip() is None:  # compares checksums of whole entries
            return {entry: kept[entry] for entry in entries}
    return None


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
    if not folder.is_dir():
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
