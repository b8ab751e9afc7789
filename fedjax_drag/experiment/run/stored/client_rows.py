"""The file beside a checkpoint in which the rows of clients are that a run keeps on the disk.

Only records that have changed since the beginning are in it: ids of the clients, their records, and the record from
which all clients started. They are copied in chunks, since all of them may exceed the memory.
"""

import os
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.files import replaced
from fedjax_drag.simulation.devices.host_state import RowFile, with_rows

FILE = "client_rows"
"""Name of the file in the folder of a checkpoint."""


def write(file: RowFile, path: Path) -> int:
    """Writes the records of ``file`` that have changed; they are on the disk when this returns.

    Returns:
      CRC-32 of what was written.
    """
    total = 0
    with replaced(path) as stream:

        def append(part: np.ndarray) -> None:
            nonlocal total
            total = zlib.crc32(part.data, total)
            stream.write(part.data)

        append(np.array([file.changed.sum()], np.int64))
        append(file.first)
        append(np.flatnonzero(file.changed))
        for ids in file.chunks():
            append(file.read(ids))
        stream.flush()
        os.fsync(stream.fileno())
    return total


def read(path: Path, like: Any, checksum: int) -> Any:
    """The state ``like``, shapes and dtypes, with rows that :func:`write` has written; the rest is as in ``like``.

    Raises:
      ValueError: the file is missing, or does not match its checksum.
    """
    rows = jax.tree.leaves(per_client.found_in(like))
    file = RowFile([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in rows], len(rows[0]))
    total = 0
    try:
        with path.open("rb") as stream:

            def following(count: int, dtype: Any) -> np.ndarray:
                nonlocal total
                part = np.fromfile(stream, dtype, count)
                total = zlib.crc32(part.data, total)
                return part

            (number,) = following(1, np.int64)
            if not 0 <= number <= len(file.changed):
                raise ValueError(f"has {number} records")
            file.start(following(file.first.size, np.uint8))
            file.changed[following(int(number), np.int64)] = True
            for ids in file.chunks():
                file.write(ids, following(file.size * len(ids), np.uint8).reshape(len(ids), file.size))
    except (OSError, ValueError, IndexError, TypeError) as error:
        raise ValueError(f"{FILE}: {error}") from error
    if total != checksum:
        raise ValueError(f"{FILE}: does not match its checksum")
    return with_rows(like, file.leaves)
