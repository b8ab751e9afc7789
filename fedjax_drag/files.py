"""Files of folders that may come from somebody else: written as new files, read within bounds, and their checksums."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_LONGEST_NAME, _LONGEST_PATH = 255, 3700
"""Bytes of a folder's name and of its path; what a run writes has some 300 more of the 4,096 that Linux has."""

_MOST_BYTES = 1 << 26
"""Of a JSON file."""


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file that takes the place of ``path`` when the block ends, and is removed when it fails.

    Readers see the old file or the new one. Links are not followed: a link at ``path`` is replaced by the file.

    Args:
      path: of a file in a folder that exists.
    """
    partial = partial_of(path)
    partial.unlink(missing_ok=True)  # of a process that was killed, or a link
    try:
        with partial.open("xb") as stream:  # O_EXCL: fails rather than follow a link
            yield stream
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def partial_of(path: Path) -> Path:
    """The new file, beside ``path``, before it takes its place."""
    return path.with_name(f".{path.name}.partial")


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file as :func:`replaced` does."""
    with replaced(path) as stream:
        stream.write(text.encode())


def fitting(name: str, folder: Path) -> Path:
    """The path of a folder for results, which leaves room for what lies in it and can be written into files.

    Raises:
      ValueError: it is too long, or not UTF-8; one line that names the argument ``name``.
    """
    whole = os.path.abspath(folder)
    longest = max(len(os.fsencode(part)) for part in whole.split(os.sep))
    text = whole.encode(errors="replace").decode()
    if len(os.fsencode(whole)) > _LONGEST_PATH or longest > _LONGEST_NAME or text != whole:
        shown = text if len(text) <= 80 else f"{text[:80]}..."
        allowed = f"UTF-8 of at most {_LONGEST_PATH:,} bytes with names of at most {_LONGEST_NAME}"
        raise ValueError(f"{name}={shown!r}: must be {allowed}")
    return folder


def strangers(folder: Path) -> list[Path]:
    """What in a folder is neither a file nor a folder itself, such as links, pipes and devices."""
    with os.scandir(folder) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
        ]


def check_kinds(folder: Path, files: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
    """Refuses a folder in which what must be a file is a folder, or the reverse; what does not exist passes.

    Raises:
      ValueError: one line that names it.
    """
    for name in files:
        if (folder / name).is_dir():
            raise ValueError(f"{str(folder / name)!r}: must be a file, and this is a folder; remove it")
    for name in folders:
        if (folder / name).exists() and not (folder / name).is_dir():
            raise ValueError(f"{str(folder / name)!r}: must be a folder, and this is none; remove it")


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The content of a file, of ``most`` bytes at most.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is longer, no file, or cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{str(path)!r}: must be a file, and this is none")
    try:
        with path.open("rb") as stream:
            content = stream.read() if most is None else stream.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{str(path)!r}: cannot be read ({error.strerror})") from error
    if most is not None and len(content) > most:
        raise ValueError(f"{str(path)!r}: must have at most {most:,} bytes")
    return content


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it cannot be read, is too long, not JSON or nested too deeply.
    """
    try:
        return json.loads(read_bytes(path, _MOST_BYTES))
    except RecursionError:
        raise ValueError(f"{str(path)!r}: nested too deeply") from None


def sha256(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder.

    Raises:
      FileNotFoundError: there is neither.
    """
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    if not path.is_dir():
        raise FileNotFoundError(f"{str(path)!r}: no such file or folder")
    files = sorted(inner for inner in path.rglob("*") if inner.is_file())
    lines = [f"{sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
