"""Values as bytes between the processes of a run: JSON, followed by the bits of the arrays.

Reading builds only plain values, arrays of numbers, and exceptions of a few built-in types.
"""

import json
from typing import Any

import jax
import numpy as np

_LENGTH = 8
"""Bytes in which the length of the JSON text is written."""

_EXCEPTIONS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        *(ValueError, TypeError, KeyError, IndexError, ArithmeticError, FloatingPointError, ZeroDivisionError),
        *(OSError, FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError),
        *(RuntimeError, NotImplementedError, MemoryError, EOFError),
    )
}


def pack(value: Any) -> bytes:
    """A value as bytes.

    Args:
      value: None, numbers, texts, arrays of numbers, and lists, tuples and dicts (by text) of them. A named tuple
        becomes a plain one, and every array becomes one of NumPy.

    Raises:
      TypeError: it holds something else.
    """
    pieces: list[bytes] = []
    text = json.dumps(_plain(value, pieces)).encode()
    return b"".join([len(text).to_bytes(_LENGTH, "little"), text, *pieces])


def unpack(message: bytes) -> Any:
    """The value that :func:`pack` wrote; its arrays are writable."""
    start = _LENGTH + int.from_bytes(message[:_LENGTH], "little")
    return _restored(json.loads(message[_LENGTH:start]), memoryview(message)[start:])


def pack_error(error: Exception) -> bytes:
    """An exception as bytes: the nearest built-in type that it inherits from, and its text."""
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _EXCEPTIONS), "")
    text = (
        str(error.args[0]) if type(error) is KeyError and error.args else str(error)
    )  # str() of a KeyError adds quotes
    return pack([kind, text if kind else f"{type(error).__name__}: {text}"])


def unpack_error(message: bytes) -> Exception:
    """The exception that :func:`pack_error` wrote; a RuntimeError if its type is none of the built-in ones."""
    kind, text = unpack(message)
    return _EXCEPTIONS.get(kind, RuntimeError)(text)


def _plain(value: Any, pieces: list[bytes]) -> Any:
    """``value`` as JSON, each collection as a dict ``{kind: entries}``; appends the bits of arrays to ``pieces``."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value, order="C")
        if array.dtype.hasobject:
            raise TypeError(f"an array of {array.dtype}: must be of numbers")
        place = sum(map(len, pieces))
        pieces.append(array.tobytes())
        extension = array.dtype.kind == "V"  # such as bfloat16, for which NumPy has no short name
        return {"array": [array.dtype.name if extension else array.dtype.str, array.shape, place]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_plain(entry, pieces) for entry in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _plain(entry, pieces) for key, entry in value.items()}}
    raise TypeError(f"{type(value).__name__}: cannot be sent to the other processes")


def _restored(value: Any, bits: memoryview) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "array":
        name, shape, place = inner
        dtype, count = np.dtype(name), int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(bits, dtype, count, place).reshape(shape).copy() if count else np.zeros(shape, dtype)
    if kind == "dict":
        return {key: _restored(entry, bits) for key, entry in inner.items()}
    entries = [_restored(entry, bits) for entry in inner]
    return tuple(entries) if kind == "tuple" else entries
