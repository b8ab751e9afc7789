"""Several processes, on one machine or on many, that compute one run.

Each runs the same program with the same settings and data; their devices form one mesh. Only the first process reads
and writes the files of a run, and sends what it reads, or the error, to the others.
"""

import pickle
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_drag import checks

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
      function: called in the first process only. What it returns or raises is pickled; an exception that cannot be
        becomes a RuntimeError.
      *args: its arguments.
    """
    if not jax.distributed.is_initialized():
        return function(*args)
    raised, message = False, b""
    if is_first():
        try:
            message = pickle.dumps(function(*args))
        except Exception as error:
            raised, message = True, _pickled(error)
    # The length is sent first, in two parts: without jax_enable_x64 an integer has 32 bits.
    head = np.array([*divmod(len(message), 2**31), raised], np.int32)
    high, low, raised = map(int, multihost_utils.broadcast_one_to_all(head))
    padded = message.ljust(high * 2**31 + low, b"\0")
    received = np.asarray(multihost_utils.broadcast_one_to_all(np.frombuffer(padded, np.uint8))).tobytes()
    if raised:
        raise pickle.loads(received)
    return pickle.loads(received)


def _pickled(error: Exception) -> bytes:
    """An exception, or a RuntimeError with its text where it cannot be sent as it is."""
    try:
        message = pickle.dumps(error)
        pickle.loads(message)
    except Exception:  # attributes of an exception may be anything
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return message


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
