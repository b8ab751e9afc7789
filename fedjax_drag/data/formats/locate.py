"""Where the files of a data set lie on this machine."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedjax_drag.data.formats.compressed import SUFFIXES

ENVIRONMENT_VARIABLE = "FEDJAX_DRAG_DATA"
_SYSTEM = Path("/usr/share/datasets")


def find(
    name: str, wanted: Sequence[str], subfolders: Sequence[str], data_dir: str | os.PathLike[str] | None, advice: str
) -> list[Path]:
    """Finds the files of a data set, all in one folder.

    Args:
      name: of the data set.
      wanted: official names of its files; each may also be compressed, with ``.gz`` or ``.xz`` appended. A plain file
        comes first.
      subfolders: folders they may lie in, below a place that is searched; they come before the place itself, because
        data sets share file names.
      data_dir: the only place to look in: no other may silently stand in for it. None is for the folder in the
        environment variable ``FEDJAX_DRAG_DATA``, and ``/usr/share/datasets/<name>``.
      advice: how to get the files; ends in a conjunction.

    Returns:
      A path for each wanted file, of the first folder that has them all.

    Raises:
      FileNotFoundError: there is no such folder; the one line says where was looked and what is lacking.
    """
    folders = candidates(name, subfolders, data_dir)
    incomplete = ""
    for folder in folders:
        found = [variant(folder, file) for file in wanted]
        paths = [path for path in found if path is not None]
        if len(paths) == len(wanted):
            return paths
        if paths and not incomplete:
            missing = ", ".join(file for file, path in zip(wanted, found, strict=True) if path is None)
            incomplete = f"; {folder} lacks {missing} (plain, .gz or .xz)"
    looked = ", ".join(str(folder) for folder in folders)
    files = " and ".join(wanted) if len(wanted) < 3 else f"{wanted[0]} and the other {len(wanted) - 1}"
    where = f"data_dir or {ENVIRONMENT_VARIABLE} to the folder that holds {files} (plain, .gz or .xz)"
    raise FileNotFoundError(f"{name}: not found in {looked}{incomplete}; {advice} set {where}")


def candidates(name: str, subfolders: Sequence[str], data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Folders to look in, the best first."""
    place = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT_VARIABLE) or None
    system = [] if data_dir is not None else [_SYSTEM / name.replace("_", "-")]
    if place is None:
        return system
    root = Path(os.path.expanduser(place))
    return [*(root / folder for folder in subfolders), *system, root]


def variant(folder: Path, file: str) -> Path | None:
    """The file as it is there: plain or compressed."""
    variants = (folder / f"{file}{suffix}" for suffix in ("", *SUFFIXES))
    return next((path for path in variants if os.path.isfile(path)), None)
