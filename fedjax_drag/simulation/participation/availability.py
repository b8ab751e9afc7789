"""Who can be drawn in which round, as an option gives it: a number, a list, an array or a file."""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag import checks

READERS = {".npy": lambda path: np.load(path, allow_pickle=False), ".csv": lambda path: np.loadtxt(path, delimiter=",")}
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
    name = f"availability={checks.shown(availability)}"
    is_file = isinstance(availability, str | Path)
    try:
        values = READERS[Path(availability).suffix](availability) if is_file else np.asarray(availability)
        trace = values if values.dtype == bool else values.astype(np.float32)
    except (OSError, ValueError, TypeError, EOFError) as error:
        allowed = "must be a file of numbers" if is_file else "must be numbers, as many in each row"
        raise ValueError(f"{name}: {allowed}; {checks.first_line(error)}") from None
    if trace.ndim == 0:
        trace = np.broadcast_to(trace, (1, num_clients))
    trace = np.atleast_2d(trace)
    if trace.ndim != 2 or trace.shape[1] != num_clients or not len(trace):
        raise ValueError(f"{name} with shape {values.shape}: must be [{num_clients}] or [rounds, {num_clients}]")
    if not ((trace >= 0) & (trace <= 1)).all():
        raise ValueError(f"{name}: must be in [0, 1] for every client")
    return np.ascontiguousarray(trace)
