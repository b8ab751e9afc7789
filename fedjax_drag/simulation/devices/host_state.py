"""Per-client state in host memory, or in a file: a round's program receives its cohort's rows and returns them.

Each of several processes keeps all rows, so that any of its devices may work on any client.

A file (:class:`RowFile`) has a record for each client, in which its rows of all leaves lie side by side: a round reads
and writes one place of the file for each client of its cohort. It is sparse, so that records that nobody has written
take no space, and it has no name, so that nothing is left of it when the process ends, however it ends.

The map of the file is there to be looked at. Records are read and written by calls: a page of a sparse file that is
touched through a map can take milliseconds, and a full disk then ends the process, where a call raises an error.
"""

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.devices.placement import fetch, place

_ALIGNMENT = 8
"""Bytes of which the beginnings of records, and of the leaves in them, are multiples."""

_CHUNK = 1 << 26
"""Bytes of records that are in memory at a time while records are copied."""


class FileRows(np.ndarray):
    """A leaf ``[M, *p]`` of a :class:`RowFile`; copies and parts of it belong to none.

    Attributes:
      file: that it is a leaf of.
    """

    file: "RowFile | None" = None


class RowFile:
    """A temporary file of rows, in the folder that ``TMPDIR`` names or the system's own.

    Args:
      like: shape and dtype of a row of each leaf, ``[*p]``; the rows are zero. Of random keys the raw data are kept.
      num_clients: M.

    Raises:
      MemoryError: the folder has too little space.

    Attributes:
      num_clients: M.
      size: bytes of a record.
      first: the record that every client starts from, uint8.
      changed: ``[M]`` bool, clients whose record may be another one.
    """

    def __init__(self, like: Sequence[Any], num_clients: int):
        like = [jax.eval_shape(raw, jax.ShapeDtypeStruct(row.shape, row.dtype)) for row in like]
        starts, size = [], 0
        for row in like:
            starts.append(size)
            size += -(-int(np.prod(row.shape)) * row.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        _check_space(size * num_clients)
        self.num_clients, self.size = num_clients, size
        forms, names = [(row.dtype, row.shape) for row in like], [str(place) for place in range(len(like))]
        self._record = np.dtype({"names": names, "formats": forms, "offsets": starts, "itemsize": size})
        with tempfile.TemporaryFile(prefix="fedjax_drag-") as stream:
            stream.truncate(size * num_clients)
            self._map = mmap.mmap(stream.fileno(), size * num_clients, access=mmap.ACCESS_READ)
            self._descriptor = os.dup(stream.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self.first = np.zeros(size, np.uint8)
        self.changed = np.zeros(num_clients, bool)

    @property
    def leaves(self) -> list[FileRows]:
        """The rows by leaf, ``[M, *p]`` as ``like``; read-only."""
        leaves = [view.view(FileRows) for view in self.views(self._map, self.num_clients)]
        for leaf in leaves:
            leaf.file = self
        return leaves

    def views(self, records: Any, number: int) -> list[np.ndarray]:
        """``number`` records, which lie one after another in a buffer, by leaf."""
        whole = np.ndarray(number, self._record, records)
        return [whole[name] for name in self._record.names or ()]

    def read(self, client_ids: np.ndarray) -> np.ndarray:
        """The records of some clients, ``[S, bytes]``."""
        records = np.empty((len(client_ids), self.size), np.uint8)
        records[:] = self.first
        for row in np.flatnonzero(self.changed[client_ids]).tolist():
            os.lseek(self._descriptor, int(client_ids[row]) * self.size, os.SEEK_SET)
            records[row] = np.frombuffer(os.read(self._descriptor, self.size), np.uint8)
        return records

    def write(self, client_ids: np.ndarray, records: np.ndarray) -> None:
        """Replaces the records of some clients by ``records`` ``[S, bytes]``."""
        for client, record in zip(client_ids.tolist(), records, strict=True):
            self._write(client, record)
        self.changed[client_ids] = True

    def _write(self, client: int, records: np.ndarray) -> None:
        os.lseek(self._descriptor, client * self.size, os.SEEK_SET)
        left = memoryview(np.ascontiguousarray(records).data).cast("B")
        while left:  # what finds no space is written in part, and then an error
            left = left[os.write(self._descriptor, left) :]

    def start(self, first: np.ndarray) -> None:
        """Gives every client the record ``first``; only one of zeros need not be written."""
        self.first = first
        if first.any():
            step = self._step
            block = np.tile(first, (min(step, self.num_clients), 1))
            for begin in range(0, self.num_clients, step):
                self._write(begin, block[: self.num_clients - begin])

    @property
    def _step(self) -> int:
        """Records that are in memory at a time."""
        return max(1, _CHUNK // self.size)

    def chunks(self) -> Iterator[np.ndarray]:
        """The ids of clients whose record may have changed, so many at a time that their records fit the memory."""
        ids, step = np.flatnonzero(self.changed), self._step
        return (ids[begin : begin + step] for begin in range(0, len(ids), step))

    def copy(self, other: "RowFile") -> None:
        """Takes over all records of a file of the same form."""
        self.start(other.first)
        for ids in other.chunks():
            self.write(ids, other.read(ids))

    def copy_arrays(self, leaves: Sequence[np.ndarray]) -> None:
        """Takes over the rows of arrays ``[M, *p]``; what is zero in them is not written."""
        for begin in range(0, self.num_clients, self._step):
            parts = [leaf[begin : begin + self._step] for leaf in leaves]
            records = self.packed(parts)
            own = np.flatnonzero(records.any(axis=1))
            self.write(begin + own, records[own])

    def packed(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """The records ``[S, bytes]`` of rows ``[S, *p]`` by leaf."""
        records = np.zeros((len(leaves[0]), self.size), np.uint8)
        for view, leaf in zip(self.views(records, len(records)), leaves, strict=True):
            view[...] = leaf
        return records


def is_key(leaf: Any) -> bool:
    """Whether an array, or its shape, is of random keys."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def raw(leaf: Any) -> Any:
    """``leaf``, of random keys their data."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def revived(numbers: Any, like: Any) -> Any:
    """``numbers``, or the random keys whose raw data they are, where ``like`` is of keys."""
    if not is_key(like) or is_key(numbers):
        return numbers
    impl = jax.random.key_impl(jnp.empty(0, jnp.result_type(like)))  # a dtype alone does not say it
    return jax.random.wrap_key_data(jnp.asarray(np.asarray(numbers)), impl=impl)


def found_in(state: Any) -> RowFile | None:
    """The file of the rows among the leaves of ``state``; None where they are in no file."""
    return next((leaf.file for leaf in jax.tree.leaves(state) if isinstance(leaf, FileRows)), None)


def _check_space(needed: int) -> None:
    """Refuses a file that cannot grow to its full size, before the first round rather than after hours."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise MemoryError(
            f"client_state='disk': the rows of all clients need {needed / 2**30:,.1f} GiB in {folder!r}, which has "
            f"{free / 2**30:,.1f} GiB free; set TMPDIR to a folder with more"
        )


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
    if rows_on != DISK:
        return completed(on_device, with_rows(state, [row.copy() for row in _fetched(state)]))
    earlier, file = found_in(state), _file_like(state, len(_leaves_of_rows(state)[0]))
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


def take(state: Any, client_ids: np.ndarray, shardings: Any, like: Any = None) -> Any:
    """``state`` with one cohort's rows ``[S, *p]`` on the devices of ``shardings``; None for the default device.

    Rows that are random keys in ``like``, a state or its shapes, are keys again; default none are.
    """
    file, kept = found_in(state), _leaves_of_rows(state)
    rows = [x[client_ids] for x in kept] if file is None else file.views(file.read(client_ids), len(client_ids))
    if like is not None:
        rows = list(map(revived, rows, _leaves_of_rows(like)))
    return place(with_rows(state, rows, gathered=True), shardings)


def store(state: Any, cohort: Any, client_ids: np.ndarray) -> Any:
    """``cohort``, the state after a round, with its rows written into the rows of ``state``, which are overwritten."""
    fresh, file = _fetched(cohort), found_in(state)
    if file is None:
        for rows, own in zip(_leaves_of_rows(state), fresh, strict=True):
            rows[client_ids] = own
    else:
        file.write(client_ids, file.packed(fresh))
    return completed(cohort, state)


def _leaves_of_rows(state: Any) -> list[Any]:
    return jax.tree.leaves(per_client.found_in(state))


def _fetched(state: Any) -> list[np.ndarray]:
    """The leaves of the rows in host memory, random keys as their raw data."""
    return [np.asarray(x) for x in fetch([raw(leaf) for leaf in _leaves_of_rows(state)])]


def _file_like(state: Any, num_clients: int) -> RowFile:
    """An empty file for rows like those of ``state``."""
    return RowFile([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in _leaves_of_rows(state)], num_clients)
