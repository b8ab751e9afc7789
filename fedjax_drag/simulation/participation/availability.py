"""Who can be drawn in which round, as an option gives it: a number, a list, an array or a file."""

import math
import os
from pathlib import Path
from typing import IO, Any

import jax.numpy as jnp
import numpy as np
from numpy.lib import format as npy

from fedjax_drag import checks

_MOST_BYTES = 1 << 30
"""Of a file of availabilities."""


def _of_npy(stream: IO[bytes]) -> np.ndarray:
    """An array of a file, whose header is compared with the length of the file before anything is allocated."""
    version = npy.read_magic(stream)
    shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
    length = os.fstat(stream.fileno()).st_size - stream.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != length:
        raise ValueError(f"{dtype}{list(shape)} in {length:,} bytes")
    stream.seek(0)
    return np.load(stream, allow_pickle=False)


READERS = {".npy": _of_npy, ".csv": lambda stream: np.loadtxt(stream, delimiter=",", encoding="utf-8")}
"""How a file of availabilities is read, by the end of its name."""


def check_availability(name: str, value: Any) -> None:
    """Refuses what cannot be an availability whatever the number of clients."""
    if value is None or isinstance(value, list | tuple | np.ndarray) or getattr(value, "shape", ()):
        return
    if isinstance(value, str | Path):
        allowed = Path(value).suffix in READERS
    else:
        allowed = checks.is_concrete(value) and 0 <= value <= 1
    if not allowed:
        kinds = "a number in [0, 1], a list of them or of lists, or a .npy or .csv file of them"
        raise ValueError(f"{name}={checks.shown(value)}: must be {kinds}")


def as_trace(availability: Any, num_clients: int) -> np.ndarray | None:
    """Availabilities as an array with a row for each round.

    Args:
      availability: None; a number; numbers ``[M]`` or ``[T, M]``; or the path of a ``.npy`` or ``.csv`` file of them.
      num_clients: M.

    Returns:
      Bool or float32 ``[T, M]``, T being 1 where all rounds are alike; None where everybody is always available.

    Raises:
      ValueError: for anything else, a file that cannot be read included.
    """
    if availability is None or (checks.is_concrete(availability) and availability == 1):
        return None
    check_availability("availability", availability)
    name, trace = f"availability={checks.shown(availability)}", numbers(availability)
    shape = trace.shape
    if trace.ndim == 0:
        trace = np.broadcast_to(trace, (1, num_clients))
    trace = np.atleast_2d(trace)
    if trace.ndim != 2 or trace.shape[1] != num_clients or not len(trace):
        raise ValueError(f"{name} with shape {shape}: must be [{num_clients}] or [rounds, {num_clients}]")
    if not ((trace >= 0) & (trace <= 1)).all():
        raise ValueError(f"{name}: must be in [0, 1] for every client")
    return np.ascontiguousarray(trace)


def numbers(availability: Any) -> np.ndarray:
    """What was given, or is in the file that was given, as bool or float32.

    Raises:
      ValueError: these are no numbers, or the file cannot be read.
    """
    is_file = isinstance(availability, str | Path)
    try:
        values = _of_file(Path(availability)) if is_file else np.asarray(availability)
        if not (values.dtype == bool or jnp.issubdtype(values.dtype, jnp.floating) or values.dtype.kind in "iu"):
            raise ValueError(f"has {values.dtype}")
        return values if values.dtype == bool else values.astype(np.float32)
    except (OSError, ValueError, TypeError, EOFError) as error:
        allowed = "must be a file of numbers" if is_file else "must be numbers, as many in each row"
        name = f"availability={checks.shown(availability)}"
        raise ValueError(f"{name}: {allowed}; {checks.first_line(error)}") from None


def _of_file(path: Path) -> np.ndarray:
    """The values in a file of this machine, which is opened here: NumPy would look for an address elsewhere.

    Raises:
      OSError, ValueError: there is no such file, it is too long, or holds something else.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a file")
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size > _MOST_BYTES:
            raise ValueError(f"has more than {_MOST_BYTES:,} bytes")
        return READERS[path.suffix](stream)
