"""Checksums of files, by which a run notices that one has changed."""

import hashlib
from pathlib import Path


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
