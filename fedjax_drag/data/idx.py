"""Reader of IDX files, the format of MNIST and its relatives, plain or gzip-compressed.

The header is four bytes (two zeros, a type code, the number of dimensions) and one big-endian
32-bit size for each dimension; the values follow. A header is a claim: nothing is allocated for it
before the file was found large enough to make it true, and every byte of the file must be accounted for.
"""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

_UNSIGNED_BYTE = 0x08
_MAX_DEFLATE_RATIO = 1032
"""No gzip stream expands by more than this."""


def read(path: str | os.PathLike[str], num_dimensions: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes.

    Args:
      path: the file; compressed if its name ends in ``.gz``.
      num_dimensions: what the file must have: 1 for labels, 3 for grey images ``[N, H, W]``.

    Returns:
      The values, uint8, with ``num_dimensions`` axes.

    Raises:
      ValueError: the file is no such IDX file, is truncated, has bytes left over or is damaged; the
        one line names it.
      OSError: the file cannot be opened or read at all.
    """
    path = Path(path)
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as stream:
                return _parse(stream, num_dimensions, limit=_MAX_DEFLATE_RATIO * path.stat().st_size)
        with path.open("rb") as stream:
            return _parse(stream, num_dimensions, limit=path.stat().st_size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file ({_one_line(error)}); get it again") from error
    except _FormatError as error:
        raise ValueError(f"{path}: {error}") from None


class _FormatError(Exception):
    """What is wrong with a file, without its name."""


def _parse(stream: BinaryIO | gzip.GzipFile, num_dimensions: int, limit: int) -> np.ndarray:
    """Reads magic number, sizes and values; ``limit`` is the most bytes the file can hold."""
    expected = bytes((0, 0, _UNSIGNED_BYTE, num_dimensions))
    magic = stream.read(4)
    if magic != expected:
        found = f"0x{magic.hex()}" if magic else "an empty file"
        raise _FormatError(
            f"not an IDX file of bytes with {num_dimensions} dimension(s): starts with {found}, not 0x{expected.hex()}"
        )
    header = stream.read(4 * num_dimensions)
    if len(header) < 4 * num_dimensions:
        raise _FormatError(f"truncated: ends within its header, after {4 + len(header)} bytes")
    shape = struct.unpack(f">{num_dimensions}I", header)
    if 0 in shape:
        raise _FormatError(f"header declares shape {shape}: empty")
    size = math.prod(shape)
    if size > limit:
        raise _FormatError(f"truncated or damaged: header declares shape {shape}, more than the file can hold")
    values = stream.read(size + 1)  # one more, so that bytes left over (and, in gzip, the checksum) are seen
    if len(values) != size:
        problem = "truncated" if len(values) < size else "bytes left over"
        count = len(values) if len(values) < size else f"more than {size}"
        raise _FormatError(f"{problem}: header declares shape {shape}, {size} bytes, but {count} follow it")
    return np.frombuffer(values, np.uint8).reshape(shape)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
