"""Values as bytes between the processes of a run: JSON, and behind it the bits of the arrays.

Reading them can build nothing but plain values, arrays of numbers, and exceptions of a few built-in types.
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
        becomes a plain one, an array of whatever kind one of NumPy.

    Raises:
      TypeError: it holds something else.
    """
    pieces: list[bytes] = []
    text = json.dumps(_plain(value, pieces)).encode()
    return b"".join([len(text).to_bytes(_LENGTH, "little"), text, *pieces])


def unpack(message: bytes) -> Any:
    """What :func:`pack` was given; its arrays may be written to."""
    start = _LENGTH + int.from_bytes(message[:_LENGTH], "little")
    return _revived(json.loads(message[_LENGTH:start]), memoryview(message)[start:])


def pack_error(error: Exception) -> bytes:
    """An exception as bytes, as the nearest of its built-in types and its text."""
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _EXCEPTIONS), "")
    text = str(error.args[0]) if type(error) is KeyError and error.args else str(error)  # whose text is quoted
    return pack([kind, text if kind else f"{type(error).__name__}: {text}"])


def unpack_error(message: bytes) -> Exception:
    """What :func:`pack_error` was given; a RuntimeError that names it where its type is not known here."""
    kind, text = unpack(message)
    return _EXCEPTIONS.get(kind, RuntimeError)(text)


def _plain(value: Any, pieces: list[bytes]) -> Any:
    """``value`` as JSON, in which every collection is a dict of its kind alone; bits of arrays go to ``pieces``."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value, order="C")
        if array.dtype.hasobject:
            raise TypeError(f"an array of {array.dtype}: must be of numbers")
        place = sum(map(len, pieces))
        pieces.append(array.tobytes())
        extension = array.dtype.kind == "V"  # such as bfloat16, whose short form NumPy itself does not know
        return {"array": [array.dtype.name if extension else array.dtype.str, array.shape, place]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_plain(entry, pieces) for entry in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _plain(entry, pieces) for key, entry in value.items()}}
    raise TypeError(f"{type(value).__name__}: cannot be sent to the other processes")


def _revived(value: Any, bits: memoryview) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "array":
        name, shape, place = inner
        dtype, count = np.dtype(name), int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(bits, dtype, count, place).reshape(shape).copy() if count else np.zeros(shape, dtype)
    if kind == "dict":
        return {key: _revived(entry, bits) for key, entry in inner.items()}
    entries = [_revived(entry, bits) for entry in inner]
    return tuple(entries) if kind == "tuple" else entries
