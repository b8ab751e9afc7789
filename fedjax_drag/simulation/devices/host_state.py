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
from fedjax_drag.simulation.devices.row_file import HostRows, RowFile, found_in, is_key, raw, revived

DEVICE, HOST, DISK = PLACES = ("device", "host", "disk")
"""Where the rows of all clients can be."""


def first_row(state: Any) -> Any:
    """``state`` with the first client's row alone; before the first round all rows are the same."""
    return per_client.convert(lambda node: PerClient(jax.tree.map(lambda x: x[:1], node.rows)), state)


def repeat(state: Any, num_clients: int, rows_on: str = HOST) -> Any:
    """``state`` from :func:`first_row` with ``num_clients`` rows, in host memory or in a file."""
    rows = _fetched(state)
    if rows_on == DISK:
        file = _file_like(state, num_clients)
        file.start(file.packed(rows)[0])
        return with_rows(state, file.leaves)
    return with_rows(state, [np.repeat(row, num_clients, axis=0) for row in rows])


def with_rows_of(state: Any, on_device: Any, rows_on: str = HOST) -> Any:
    """``on_device``, a state without rows, with a copy of the rows of ``state`` in host memory or in a file."""
    state = with_keys(state)
    if rows_on != DISK:
        return completed(on_device, with_rows(state, [row.copy() for row in _fetched(state)]))
    earlier, file = found_in(state), _file_like(state, len(_rows(state)[0]))
    if earlier is not None:
        file.copy(earlier)
    else:
        file.copy_arrays(_fetched(state))
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
    file, kept = found_in(state), _rows(state)
    rows = [x[client_ids] for x in kept] if file is None else file.views(file.read(client_ids), len(client_ids))
    rows = [revived(x, getattr(leaf, "key_dtype", None)) for x, leaf in zip(rows, kept, strict=True)]
    return place(with_rows(state, rows, gathered=True), shardings)


def store(state: Any, cohort: Any, client_ids: np.ndarray) -> Any:
    """``cohort``, the state after a round, with its rows written into the rows of ``state``, which are overwritten."""
    fresh, file = _fetched(cohort), found_in(state)
    if file is None:
        for rows, own in zip(_rows(state), fresh, strict=True):
            rows[client_ids] = own
    else:
        file.write(client_ids, file.packed(fresh))
    return completed(cohort, state)


def with_keys(state: Any) -> Any:
    """``state`` with random keys in the place of their raw data, as a state on the device has them."""
    return jax.tree.map(lambda x: revived(x, getattr(x, "key_dtype", None)), state)


def _rows(state: Any) -> list[Any]:
    return jax.tree.leaves(per_client.found_in(state))


def _fetched(state: Any) -> list[HostRows]:
    """The leaves of the rows in host memory, random keys as their raw data."""
    leaves = _rows(state)
    rows = [np.asarray(x).view(HostRows) for x in fetch([raw(leaf) for leaf in leaves])]
    for row, leaf in zip(rows, leaves, strict=True):
        row.key_dtype = leaf.dtype if is_key(leaf) else None
    return rows


def _file_like(state: Any, num_clients: int) -> RowFile:
    """An empty file for rows like those of ``state``."""
    return RowFile([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in _rows(state)], num_clients)
