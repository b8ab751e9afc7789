"""Several processes, on one machine or on many, that compute one run.

Each runs the same program with the same settings and data; their devices form one mesh. Only the first process reads
and writes the files of a run, and sends what it reads, or the error, to the others.
"""

import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_drag import checks

_LENGTH = 8
"""Bytes in which the length of the JSON text is written."""

_EXCEPTIONS = (
    *(ValueError, TypeError, KeyError, IndexError, ArithmeticError, FloatingPointError, ZeroDivisionError),
    *(OSError, FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError),
    *(RuntimeError, NotImplementedError, MemoryError, EOFError),
)
"""Exceptions that are raised again from their text in other processes."""


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
    kind = next((base.__name__ for base in type(error).__mro__ if base in _EXCEPTIONS), "")
    text = str(error.args[0] if type(error) is KeyError and error.args else error)  # str() of a KeyError adds quotes
    return pack([kind, text if kind else f"{type(error).__name__}: {text}"])


def unpack_error(message: bytes) -> Exception:
    """The exception that :func:`pack_error` wrote; a RuntimeError if its type is none of the built-in ones."""
    kind, text = unpack(message)
    return next((known for known in _EXCEPTIONS if known.__name__ == kind), RuntimeError)(text)


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


T = TypeVar("T")


def initialize(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Connects this process with the others; must be called before anything else uses a device.

    Arguments that are not given are taken from the environment of a SLURM or Open MPI job.

    Args:
      coordinator_address: ``"host:port"``, a free port of the machine where the first process runs; the same in all.
      num_processes: number of processes, >= 1.
      process_id: number of this process, from 0.

    Raises:
      ValueError: an argument is wrong, or is missing and not in the environment; JAX is already in use; or another
        process does not answer.
    """
    if coordinator_address is not None:
        host, _, port = coordinator_address.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(f"coordinator_address={coordinator_address!r}: must be host:port")
    if num_processes is not None:
        checks.count("num_processes", num_processes, 1)
    if process_id is not None:
        checks.count("process_id", process_id, 0, None if num_processes is None else num_processes - 1)
    try:
        jax.distributed.initialize(coordinator_address, num_processes, process_id)
    except ValueError as error:
        given = f"coordinator_address={coordinator_address}, num_processes={num_processes}, process_id={process_id}"
        raise ValueError(f"{given}: outside of a SLURM or Open MPI job all three must be given") from error
    except RuntimeError as error:
        raise ValueError(f"initialize: {next(iter(str(error).splitlines()), 'no connection')}") from error


def is_first() -> bool:
    """Whether this process writes files: it is the only one, or the first of several."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def from_first(function: Callable[..., T], *args: Any) -> T:
    """Returns or raises in every process what ``function(*args)`` returns or raises in the first.

    All processes must call it, in the same order relative to their other collective operations.

    Args:
      function: called in the first process only; :func:`~fedjax_drag.simulation.devices.processes.pack` lists what
        it may return, and the types that change on the way. An exception becomes the nearest built-in one.
      *args: its arguments.
    """
    if not jax.distributed.is_initialized():
        return function(*args)
    raised, message = False, b""
    if is_first():
        try:
            message = pack(function(*args))
        except Exception as error:
            raised, message = True, pack_error(error)
    # The length is sent first, in two parts: without jax_enable_x64 an integer has 32 bits.
    head = np.array([*divmod(len(message), 2**31), raised], np.int32)
    high, low, raised = map(int, multihost_utils.broadcast_one_to_all(head))
    padded = message.ljust(high * 2**31 + low, b"\0")
    received = np.asarray(multihost_utils.broadcast_one_to_all(np.frombuffer(padded, np.uint8))).tobytes()
    if raised:
        raise unpack_error(received)
    return unpack(received)


def check_same(name: str, tree: Any) -> None:
    """Refuses values on the host that are not the same in all processes.

    Raises:
      ValueError: in each process whose values are not those of the first.
    """
    if jax.distributed.is_initialized() and from_first(checksum, tree) != checksum(tree):
        raise ValueError(
            f"{name}: not the same in process {jax.process_index()} as in the first; every process must load the same "
            "files and have the same settings"
        )


def checksum(tree: Any) -> int:
    """CRC-32 of the bits of all leaves, which are arrays on the host."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        total = zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data, total)
    return total
