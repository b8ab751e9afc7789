"""Reader of IDX files, the format of MNIST and its relatives, plain or compressed.

The header is four bytes (two zeros, a type code, the number of dimensions) and one big-endian
32-bit size for each dimension; the values follow. Memory grows with the bytes
read, not with the size that the header declares, and every byte of the file must belong to a value.
"""

import math
import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedjax_drag.data.formats import compressed

_UNSIGNED_BYTE = 0x08
_MOST = 1 << 30
"""Largest number of bytes of values in a file; the largest published file, of EMNIST, has half as many."""


def read(path: str | os.PathLike[str], num_dimensions: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes.

    Args:
      path: the file; compressed if its name ends in ``.gz`` or ``.xz``.
      num_dimensions: required number of axes: 1 for labels, 3 for grey images ``[N, H, W]``.

    Returns:
      The values, uint8, with ``num_dimensions`` axes, read-only.

    Raises:
      ValueError: the file is no such IDX file, is truncated, has bytes left over or is damaged; the
        one line names it.
      OSError: the file cannot be opened or read at all.
    """
    with compressed.opened(path) as stream:
        try:
            return _parse(stream, num_dimensions)
        except _FormatError as error:
            raise ValueError(f"{Path(path)}: {error}") from None


def header(shape: tuple[int, ...]) -> bytes:
    """The header of an IDX file of unsigned bytes."""
    return bytes((0, 0, _UNSIGNED_BYTE, len(shape))) + struct.pack(f">{len(shape)}I", *shape)


class _FormatError(Exception):
    """The problem with a file, without its name."""


def _parse(stream: BinaryIO, num_dimensions: int) -> np.ndarray:
    """Reads magic number, sizes and values."""
    expected = bytes((0, 0, _UNSIGNED_BYTE, num_dimensions))
    magic = stream.read(4)
    if magic != expected:
        start = f"0x{magic.hex()}" if magic else "an empty file"
        raise _FormatError(
            f"not an IDX file of bytes with {num_dimensions} dimension(s): starts with {start}, not 0x{expected.hex()}"
        )
    sizes = stream.read(4 * num_dimensions)
    if len(sizes) < 4 * num_dimensions:
        raise _FormatError(f"truncated: ends within its header, after {4 + len(sizes)} bytes")
    shape = struct.unpack(f">{num_dimensions}I", sizes)
    if 0 in shape:
        raise _FormatError(f"header declares shape {shape}: empty")
    size = math.prod(shape)
    if size > _MOST:
        raise _FormatError(f"damaged: header declares shape {shape}, more than the {_MOST:,} bytes allowed")
    values = compressed.take(stream, size)
    if len(values) < size:
        raise _FormatError(f"truncated: header declares shape {shape}, {size} bytes, but {len(values)} follow it")
    if stream.read(1):  # this read also checks the checksum of a compressed file
        raise _FormatError(f"bytes left over: header declares shape {shape}, {size} bytes, but more follow it")
    return np.frombuffer(values, np.uint8).reshape(shape)
