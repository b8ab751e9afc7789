"""Per-client state in host memory, or in a file: a round's program receives its cohort's rows and returns them.

Each of several processes keeps all rows, so that any of its devices may work on any client.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.devices.placement import fetch, place
from fedjax_drag.simulation.devices.row_file import RowFile, found_in

DEVICE, HOST, DISK = PLACES = ("device", "host", "disk")
"""Where the rows of all clients can be."""


def first_row(state: Any) -> Any:
    """``state`` with the first client's row alone; before the first round all rows are the same."""
    return per_client.convert(lambda node: PerClient(jax.tree.map(lambda x: x[:1], node.rows)), state)


def repeat(state: Any, num_clients: int, rows_on: str = HOST) -> Any:
    """``state`` from :func:`first_row` with ``num_clients`` rows, in host memory or in a file."""
    rows = [np.asarray(x) for x in _rows(state)]
    if rows_on == DISK:
        file = RowFile([row[0] for row in rows], num_clients)
        file.start(file.packed(rows)[0])
        return with_rows(state, file.leaves)
    return with_rows(state, [np.repeat(row, num_clients, axis=0) for row in rows])


def with_rows_of(state: Any, on_device: Any, rows_on: str = HOST) -> Any:
    """``on_device``, a state without rows, with a copy of the rows of ``state`` in host memory or in a file."""
    if rows_on != DISK:
        return completed(on_device, with_rows(state, jax.tree.map(np.array, fetch(_rows(state)))))
    earlier, rows = found_in(state), _rows(state)
    file = RowFile([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in rows], len(rows[0]))
    if earlier is not None:
        file.copy(earlier)
    else:
        file.copy_arrays(fetch(rows))
    return completed(on_device, with_rows(state, file.leaves))


def completed(on_device: Any, state: Any) -> Any:
    """``on_device``, a state without rows, with the rows of ``state``."""
    return per_client.convert(lambda _, whole: whole, on_device, state)


def with_rows(state: Any, leaves: Sequence[np.ndarray], gathered: bool = False) -> Any:
    """``state`` with other arrays as the leaves of its rows, in their order; ``gathered`` if they are of a cohort."""
    left = iter(leaves)
    return per_client.convert(lambda node: PerClient(jax.tree.map(lambda _: next(left), node.rows), gathered), state)


def take(state: Any, client_ids: np.ndarray, shardings: Any) -> Any:
    """``state`` with one cohort's rows ``[S, *p]`` on the devices of ``shardings``; None for the default device."""
    file = found_in(state)
    if file is None:
        rows = [x[client_ids] for x in _rows(state)]
    else:
        rows = file.views(file.read(client_ids), len(client_ids))
    return place(with_rows(state, rows, gathered=True), shardings)


def store(state: Any, cohort: Any, client_ids: np.ndarray) -> Any:
    """``cohort``, the state after a round, with its rows written into the rows of ``state``, which are overwritten."""
    fresh, file = fetch(_rows(cohort)), found_in(state)
    if file is None:
        for rows, own in zip(_rows(state), fresh, strict=True):
            rows[client_ids] = own
    else:
        file.write(client_ids, file.packed(fresh))
    return completed(cohort, state)


def _rows(state: Any) -> list[Any]:
    return jax.tree.leaves(per_client.found_in(state))
