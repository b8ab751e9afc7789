"""Reads pickles of plain data and arrays, and of nothing else.

An ordinary unpickler calls every function that a file names. This one accepts the few names that pickled arrays need,
and answers each with a function of its own that checks the sizes in the file; NumPy's unpickling code is never called.
"""

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np

_MOST_TUPLES = 10_000
"""Largest number of tuples in a file: nested tuples are hashed by recursion, which could exhaust the stack."""


def loads(path: Path, content: bytes) -> dict[str, Any]:
    """Unpickles a dictionary of numbers, strings, bytes, containers of them, and arrays.

    Args:
      path: of the file, for messages.
      content: the pickle, of any protocol; the strings of one that Python 2 wrote are bytes.

    Returns:
      Its entries; an array among them is a read-only NumPy array of numbers.

    Raises:
      ValueError: it is damaged or holds anything else; the one line names the file.
    """
    try:
        _check(content)
        entries = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        return {_text(key): value.values if isinstance(value, _Array) else value for key, value in entries.items()}
    except Exception as error:  # pickle documents that any exception may occur
        problem = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: not a pickle of plain data and arrays: {problem}; get it again") from error


def _check(content: bytes) -> None:
    """Rejects pickles that would need more memory or stack than their size explains."""
    tuples, end = 0, 0
    for opcode, argument, position in pickletools.genops(content):  # raises where a length exceeds the file
        tuples += opcode.name.startswith("TUPLE")
        end = (position or 0) + 1
        if tuples > _MOST_TUPLES:
            raise ValueError(f"more than {_MOST_TUPLES:,} tuples")
        if "PUT" in opcode.name and isinstance(argument, int) and argument > len(content):
            raise ValueError(f"memo entry {argument} in {len(content)} bytes")
    if end != len(content):
        raise ValueError(f"{len(content) - end} bytes left over")


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class _Dtype:
    """Stands for the type of an array while a pickle is read."""

    __slots__ = ("dtype",)

    def __init__(self, name: str):
        if not re.fullmatch(r"b1|[iu][1248]|f[248]", name):
            raise ValueError(f"an array of type {name[:40]!r}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]):
        order = _text(state[1])
        if order not in ("<", ">", "|"):
            raise ValueError(f"byte order {order[:40]!r}")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Stands for an array: a pickle creates it first and fills it later."""

    __slots__ = ("values",)

    def __setstate__(self, state: tuple[Any, ...]):
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: bytes | bytearray, dtype: _Dtype, shape: tuple[int, ...], order: str) -> "_Array":
        """Reads the numbers in ``data``, whose size must match ``shape``."""
        if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
            raise ValueError("an array that is not of bytes")
        sizes = all(type(size) is int and size >= 0 for size in shape)
        if not sizes or math.prod(shape) * dtype.dtype.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes for an array of another size")
        self.values = np.frombuffer(bytes(data), dtype.dtype).reshape(shape, order="F" if order == "F" else "C")
        return self


class _Unpickler(pickle.Unpickler):
    """Resolves names to bound methods of its own, which a pickle can call but not change."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "numpy", "ndarray":
                return "ndarray"  # only an argument of _reconstruct
            case "numpy", "dtype":
                return self._dtype
            case (("numpy.core.multiarray" | "numpy._core.multiarray"), "_reconstruct"):
                return self._reconstruct
            case (("numpy.core.multiarray" | "numpy._core.multiarray"), "scalar"):
                return self._scalar
            case (("numpy.core.numeric" | "numpy._core.numeric"), "_frombuffer"):
                return self._frombuffer
            case ("_codecs", "encode") | ("__builtin__", "bytes"):
                return self._encode
        raise ValueError(f"it names {module}.{name}"[:200])

    def _dtype(self, name: str | bytes, align: bool = False, copy: bool = False) -> _Dtype:
        return _Dtype(_text(name))

    def _reconstruct(self, kind: str, shape: tuple[int, ...], typecode: str | bytes) -> _Array:
        return _Array()

    def _scalar(self, dtype: _Dtype, data: bytes) -> Any:
        return _Array().fill(data, dtype, (), "C").values[()]

    def _frombuffer(self, data: bytes | bytearray, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
        return _Array().fill(data, dtype, shape, order)

    def _encode(self, text: str = "", encoding: str = "") -> bytes:
        """Bytes, also empty ones, as Python 3 writes them for Python 2."""
        return text.encode("latin-1")
