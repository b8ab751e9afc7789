"""Search for the files of a data set on this machine."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedjax_drag.data.formats.compressed import SUFFIXES

Place = str | os.PathLike[str] | None

ENVIRONMENT_VARIABLE = "FEDJAX_DRAG_DATA"
_SYSTEM = Path("/usr/share/datasets")


def find(
    name: str, versions: Sequence[Sequence[str]], subfolders: Sequence[str], data_dir: Place, advice: str
) -> list[Path]:
    """Finds the files of a data set, all in one folder.

    Args:
      name: of the data set.
      versions: official names of its files, once for each form in which it is published, the first choice first. Each
        file may also be compressed, with ``.gz`` or ``.xz`` appended; a plain one comes first.
      subfolders: folders below a searched folder in which they may be; these come before the folder itself, because
        data sets share file names.
      data_dir: the only folder to search, so that no other silently takes its place. None stands for the folder in the
        environment variable ``FEDJAX_DRAG_DATA``, and ``/usr/share/datasets/<name>``.
      advice: how to get the files; ends in a conjunction.

    Returns:
      A path for each file of the first version that a folder has whole.

    Raises:
      FileNotFoundError: no folder has them all; the one line names the folders searched and the missing files.
    """
    folders = candidates(name, subfolders, data_dir)
    incomplete = ""
    for wanted in versions:
        for folder in folders:
            found = {file: path for file in wanted if (path := variant(folder, file))}
            if len(found) == len(wanted):
                return [*found.values()]
            if found and not incomplete:
                missing = ", ".join(file for file in wanted if file not in found)
                incomplete = f"; {folder} lacks {missing} (plain, .gz or .xz)"
    first = versions[0]
    files = " and ".join(first) if len(first) < 3 else f"{first[0]} and the other {len(first) - 1}"
    where = f"data_dir or {ENVIRONMENT_VARIABLE} to the folder that holds {files} (plain, .gz or .xz)"
    raise FileNotFoundError(f"{name}: not found in {', '.join(map(str, folders))}{incomplete}; {advice} set {where}")


def candidates(name: str, subfolders: Sequence[str], data_dir: Place) -> list[Path]:
    """Folders to search, the first choice first."""
    place = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT_VARIABLE) or None
    system = [] if data_dir is not None else [_SYSTEM / name.replace("_", "-")]
    if place is None:
        return system
    root = Path(os.path.expanduser(place))
    return [*(root / folder for folder in subfolders), *system, root]


def variant(folder: Path, file: str) -> Path | None:
    """The plain file, else a compressed one; None if there is neither. ``-idx`` may be spelled ``.idx``."""
    spellings = dict.fromkeys((file, file.replace("-idx", ".idx")))
    variants = (folder / f"{name}{suffix}" for name in spellings for suffix in ("", *SUFFIXES))
    return next((path for path in variants if os.path.isfile(path)), None)
