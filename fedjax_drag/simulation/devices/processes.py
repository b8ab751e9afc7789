"""Several processes, on one machine or on many, that compute one run together.

Each runs the same program with the same settings and data; their devices form one mesh. Only the first writes files:
what it finds in them, or what goes wrong there, it tells the others.
"""

import os
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_drag import checks
from fedjax_drag.simulation.devices import wire

T = TypeVar("T")


def initialize(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Connects this process with the others; to be called before anything else touches a device.

    What is left out comes from the environment of a SLURM or Open MPI job.

    Args:
      coordinator_address: ``"host:port"``, a free port of the machine where the first process runs, for all the same.
      num_processes: how many they are, >= 1.
      process_id: which of them this is, from 0.

    Raises:
      ValueError: an argument is wrong, or is missing and not in the environment; JAX is already in use; or the others
        could not be reached.
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


def one_device_per_core() -> None:
    """Makes every CPU core a device; to be called before anything else touches a device."""
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)


def is_first() -> bool:
    """Whether this is the process that writes: the only one, or the first of several."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def from_first(function: Callable[..., T], *args: Any) -> T:
    """What ``function(*args)`` returns or raises in the first process, in every process.

    All processes must get here, in the same order with respect to whatever else they do together.

    Args:
      function: called in the first process only; :func:`~fedjax_drag.simulation.devices.wire.pack` says what it may
        return, and what of that comes back as something plainer. An exception comes back as the nearest built-in one.
      *args: its arguments.
    """
    if not jax.distributed.is_initialized():
        return function(*args)
    raised, message = _outcome(function, *args) if is_first() else (False, b"")
    # Its length goes ahead in two parts, as 64 bits are not to be had everywhere.
    head = np.array([*divmod(len(message), 2**31), raised], np.int32)
    high, low, raised = map(int, multihost_utils.broadcast_one_to_all(head))
    padded = message.ljust(high * 2**31 + low, b"\0")
    received = np.asarray(multihost_utils.broadcast_one_to_all(np.frombuffer(padded, np.uint8))).tobytes()
    if raised:
        raise wire.unpack_error(received)
    return wire.unpack(received)


def _outcome(function: Callable[..., Any], *args: Any) -> tuple[bool, bytes]:
    """Whether it raised, and what it returned or raised."""
    try:
        return False, wire.pack(function(*args))
    except Exception as error:
        return True, wire.pack_error(error)


def check_same(name: str, tree: Any) -> None:
    """Refuses values on the host that are not the same in all processes, of which each would compute with its own.

    Raises:
      ValueError: in each process whose values are not those of the first.
    """
    if jax.distributed.is_initialized() and from_first(checksum, tree) != checksum(tree):
        raise ValueError(
            f"{name}: not the same in process {jax.process_index()} as in the first; every process must load the same "
            "files and have the same settings"
        )


def checksum(tree: Any) -> int:
    """Of the bits of all leaves, which are arrays on the host."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        total = zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data, total)
    return total
