"""Content of plain and compressed files; sizes that a file declares are not trusted."""

import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

SUFFIXES = {".gz": "gzip", ".xz": "xz"}
"""Endings of the compressed files that can be read, and their formats."""

_BEGINNINGS = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz"}
"""First bytes of compressed files."""

_CHUNK = 1 << 20

_PLAUSIBLE, _ANYWAY = 250, 64 << 20
"""Largest ratio of unpacked to packed size, and unpacked bytes always allowed; typical ratios are 10 to 50."""


def official_name(path: Path) -> str:
    """The name of a file without the ending that says how it is compressed, as its publisher spells it."""
    return (path.stem if path.suffix in SUFFIXES else path.name).replace(".idx", "-idx")


def read(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """The whole content of a file, unpacked if its name ends in ``.gz`` or ``.xz``.

    Args:
      path: the file.
      limit: largest allowed number of unpacked bytes; default no limit. For a packed file it is at most 250 times the
        size of the file, or 64 MiB if that is more.

    Raises:
      ValueError: it is damaged, truncated or exceeds the limit; the one line names it.
      OSError: it cannot be opened or read at all.
    """
    if Path(path).suffix in SUFFIXES:
        plausible = max(_ANYWAY, _PLAUSIBLE * os.path.getsize(path))
        limit = plausible if limit is None else min(limit, plausible)
    with opened(path) as stream:
        content = take(stream, limit)
        if limit is not None and stream.read(1):
            raise ValueError(f"{path}: holds more than the {limit:,} bytes that it should; get it again")
    return content


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The unpacked content as a stream; damage of the packing becomes a ValueError of one line."""
    path = Path(path)
    kind = SUFFIXES.get(path.suffix)
    try:
        if kind == "gzip":
            if not path.stat().st_size:
                raise EOFError("empty")  # which the library reads as empty content
            with gzip.open(path, "rb") as stream:
                yield cast(BinaryIO, stream)
        elif kind == "xz":
            with lzma.open(path, "rb", format=lzma.FORMAT_XZ) as stream:
                yield cast(BinaryIO, stream)
        else:
            with path.open("rb") as stream:
                for beginning, suffix in _BEGINNINGS.items():
                    if stream.peek(len(beginning)).startswith(beginning):
                        raise ValueError(f"{path}: a {SUFFIXES[suffix]} file: rename it to {path.name}{suffix}")
                yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: damaged {kind} file ({' '.join(str(error).split())}); get it again") from error
    except MemoryError as error:  # an .xz file declares the memory that it needs
        raise ValueError(f"{path}: takes more memory to read than there is") from error


def take(stream: BinaryIO, most: int | None = None) -> bytes:
    """Reads up to ``most`` bytes; memory grows with the bytes read, not with a size that a header declares."""
    buffer = io.BytesIO()
    while chunk := stream.read(_CHUNK if most is None else min(_CHUNK, most - buffer.tell())):
        buffer.write(chunk)
    return buffer.getvalue()


def verify(name: str, path: Path, checksums: Mapping[str, str], *content: bytes | memoryview) -> None:
    """Compares the unpacked content of a file with the published one.

    The same bytes are distributed in packed files that differ in time stamp and compression.

    Args:
      name: of the data set.
      path: the file.
      checksums: SHA-256, or MD5 where only that is published, in hexadecimal, by official file name; a file without
        one is accepted.
      content: the whole of it, unpacked, in pieces.

    Raises:
      ValueError: the content differs; the one line names the file.
    """
    published = checksums.get(official_name(path))
    if published is None:
        return
    kind = "SHA-256" if len(published) == 64 else "MD5"
    digest = hashlib.new(kind.replace("-", ""), usedforsecurity=False)
    for piece in content:
        digest.update(piece)
    actual = digest.hexdigest()
    if actual != published:
        raise ValueError(
            f"{path}: not the published file of {name}: {kind} of its content {actual}: must be {published}; "
            "get it again (for data of your own: fd.data.from_arrays)"
        )
