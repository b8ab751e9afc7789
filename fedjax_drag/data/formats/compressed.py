"""Files as bytes, whether they are plain or compressed; nothing is believed about how much is in them."""

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
"""Endings of the compressed files that can be read, and what they mean."""

_CHUNK = 1 << 20

_PLAUSIBLE, _ANYWAY = 250, 64 << 20
"""How many times its size a packed file may hold, and how many bytes in any case: data pack ten- to fiftyfold."""


def official_name(path: Path) -> str:
    """The name of a file without the ending that says how it is compressed."""
    return path.stem if path.suffix in SUFFIXES else path.name


def read(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """The whole content of a file, unpacked if its name ends in ``.gz`` or ``.xz``.

    Args:
      path: the file.
      limit: the most bytes that it may hold, unpacked; any number if not given. Of a packed file that is large these
        are in any case no more than 250 times its size.

    Raises:
      ValueError: it is damaged, truncated or holds more; the one line names it.
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
    """The unpacked content as a stream; what is wrong with the packing is a ValueError in one line."""
    path = Path(path)
    kind = SUFFIXES.get(path.suffix)
    try:
        if kind == "gzip":
            if not path.stat().st_size:
                raise EOFError("empty")  # which the library takes for an empty content
            with gzip.open(path, "rb") as stream:
                yield cast(BinaryIO, stream)
        elif kind == "xz":
            with lzma.open(path, "rb", format=lzma.FORMAT_XZ) as stream:
                yield cast(BinaryIO, stream)
        else:
            with path.open("rb") as stream:
                yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: damaged {kind} file ({' '.join(str(error).split())}); get it again") from error
    except MemoryError as error:  # an .xz file says itself how much it takes
        raise ValueError(f"{path}: takes more memory to read than there is") from error


def take(stream: BinaryIO, most: int | None = None) -> bytes:
    """Reads up to ``most`` bytes; memory grows with what arrives, whatever a header may have claimed."""
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
      ValueError: it is another content; the one line names the file.
    """
    published = checksums.get(official_name(path))
    if published is None:
        return
    kind = "SHA-256" if len(published) == 64 else "MD5"
    digest = hashlib.new(kind.replace("-", ""), usedforsecurity=False)
    for piece in content:
        digest.update(piece)
    found = digest.hexdigest()
    if found != published:
        raise ValueError(
            f"{path}: not the published file of {name}: {kind} of its content {found}: must be {published}; "
            "get it again (for data of your own: fd.data.from_arrays)"
        )
