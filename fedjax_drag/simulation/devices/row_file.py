"""Rows of all clients in one memory-mapped file, for state that exceeds the memory.

The file has a record for each client, in which its rows of all leaves lie side by side: a round reads and writes one
place of the file for each client of its cohort. It is sparse, so that records that nobody has written take no space,
and it has no name, so that nothing is left of it when the process ends, however it ends.
"""

import mmap
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_drag import per_client

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
      like: a row of each leaf, ``[*p]``, or its shape and dtype; the rows are zero.
      num_clients: M.

    Raises:
      MemoryError: the folder has too little space.

    Attributes:
      records: ``[M, bytes of a record]`` uint8, the content of the file.
      first: the record that every client starts from.
      changed: ``[M]`` bool, clients whose record may be another one.
    """

    def __init__(self, like: Sequence[Any], num_clients: int):
        starts, size = [], 0
        like = [jax.ShapeDtypeStruct(row.shape, row.dtype) for row in like]
        for row in like:
            starts.append(size)
            size += -(-int(np.prod(row.shape)) * row.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        _check_space(size * num_clients)
        with tempfile.TemporaryFile(prefix="fedjax_drag-") as stream:
            stream.truncate(size * num_clients)
            mapped = mmap.mmap(stream.fileno(), size * num_clients)  # keeps the file when the stream is closed
        self.records = np.frombuffer(mapped, np.uint8).reshape(num_clients, size)
        self.first = np.zeros(size, np.uint8)
        self.changed = np.zeros(num_clients, bool)
        self._layout = list(zip(starts, like, strict=True))

    @property
    def leaves(self) -> list[FileRows]:
        """The records by leaf, ``[M, *p]`` as ``like``."""
        return [self._leaf(start, row) for start, row in self._layout]

    def _leaf(self, start: int, row: Any) -> FileRows:
        strides = np.empty(row.shape, row.dtype).strides
        shape = self.records.shape[0], *row.shape
        leaf = FileRows(shape, row.dtype, self.records.data, start, (self.records.shape[1], *strides))
        leaf.file = self
        return leaf

    def start(self, first: np.ndarray) -> None:
        """Gives every client the record ``first``; only one of zeros need not be written."""
        self.first = first
        if first.any():
            self.records[:] = first

    def chunks(self) -> Iterator[np.ndarray]:
        """The ids of clients whose record may have changed, so many at a time that their records fit the memory."""
        ids = np.flatnonzero(self.changed)
        step = max(1, _CHUNK // self.records.shape[1])
        return (ids[begin : begin + step] for begin in range(0, len(ids), step))

    def copy(self, other: "RowFile") -> None:
        """Takes over all records of a file of the same form."""
        self.start(other.first)
        for ids in other.chunks():
            self.records[ids] = other.records[ids]
        self.changed[:] = other.changed

    def copy_arrays(self, leaves: Sequence[np.ndarray]) -> None:
        """Takes over the rows of arrays ``[M, *p]``; what is zero in them is not written."""
        step, own_leaves = max(1, _CHUNK // self.records.shape[1]), self.leaves
        for begin in range(0, len(self.records), step):
            parts = [np.ascontiguousarray(leaf[begin : begin + step]) for leaf in leaves]
            of_bits = [part.reshape(len(part), -1).view(np.uint8).any(1) for part in parts if part.size]
            own = np.logical_or.reduce(of_bits)
            for leaf, part in zip(own_leaves, parts, strict=True):
                leaf[begin : begin + step][own] = part[own]
            self.changed[begin : begin + step] = own


def found_in(state: Any) -> RowFile | None:
    """The file of the rows in ``state``; None where they are in no file."""
    leaves = jax.tree.leaves(per_client.found_in(state))
    return next((leaf.file for leaf in leaves if isinstance(leaf, FileRows)), None)


def _check_space(needed: int) -> None:
    """Refuses a file that would not fit: writing a mapped page to a full disk ends the process without a word."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise MemoryError(
            f"client_state='disk': the rows of all clients need {needed / 2**30:,.1f} GiB in {folder!r}, which has "
            f"{free / 2**30:,.1f} GiB free; set TMPDIR to a folder with more"
        )
