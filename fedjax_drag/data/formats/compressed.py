"""Content of plain and compressed files; sizes that a file declares are not trusted."""

import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

SUFFIXES = (".gz", ".xz")
"""Endings of the compressed files that are looked for."""

_FORMATS = {
    "gzip": (b"\x1f\x8b", gzip.open),
    "xz": (b"\xfd7zXZ\0", partial(lzma.open, format=lzma.FORMAT_XZ)),  # older formats have no checksum
}
"""First bytes of compressed files, and what unpacks them."""

_CHUNK = 1 << 20

_PLAUSIBLE, _ANYWAY = 250, 64 << 20
"""Largest ratio of unpacked to packed size, and unpacked bytes always allowed; typical ratios are 10 to 50."""


def official_name(path: Path) -> str:
    """The name of a file without the ending that says how it is compressed, as its publisher spells it."""
    return (path.stem if path.suffix in SUFFIXES else path.name).replace(".idx", "-idx")


def read(path: Path, limit: int) -> bytes:
    """The whole content of a file, unpacked if its first bytes are those of gzip or xz.

    Memory grows with the bytes read, not with a size that the file declares.

    Args:
      path: the file.
      limit: largest allowed number of unpacked bytes; for a packed file also 250 times its size, or 64 MiB if that is
        more.

    Raises:
      ValueError: it is damaged, truncated or exceeds the limit; the one line names it.
      OSError: it cannot be opened or read at all.
    """
    with path.open("rb") as stream:
        beginning = stream.read(6)
    kind = next((kind for kind, (own, _) in _FORMATS.items() if beginning.startswith(own)), None)
    if kind:
        limit = min(limit, max(_ANYWAY, _PLAUSIBLE * path.stat().st_size))
    content = io.BytesIO()
    try:
        with _FORMATS[kind][1](path) if kind else path.open("rb") as stream:
            while chunk := stream.read(min(_CHUNK, limit + 1 - content.tell())):
                content.write(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: damaged {kind} file ({' '.join(str(error).split())}); get it again") from error
    except MemoryError as error:  # an .xz file declares the memory that it needs
        raise ValueError(f"{path}: takes more memory to read than there is") from error
    if content.tell() > limit:
        raise ValueError(f"{path}: holds more than the {limit:,} bytes that it should; get it again")
    return content.getvalue()


def verify(name: str, path: Path, checksums: Mapping[str, str], content: bytes) -> None:
    """Compares the unpacked content of a file with the published one.

    The same bytes are distributed in packed files that differ in time stamp and compression.

    Args:
      name: of the data set.
      path: the file.
      checksums: SHA-256, or MD5 where only that is published, in hexadecimal, by official file name; a file without
        one is accepted.
      content: the whole of it, unpacked.

    Raises:
      ValueError: the content differs; the one line names the file.
    """
    published = checksums.get(official_name(path))
    if published is None:
        return
    kind = "SHA-256" if len(published) == 64 else "MD5"
    actual = hashlib.new(kind.replace("-", ""), content, usedforsecurity=False).hexdigest()
    if actual != published:
        raise ValueError(
            f"{path}: not the published file of {name}: {kind} of its content {actual}: must be {published}; "
            "get it again (for data of your own: fd.data.from_arrays)"
        )
