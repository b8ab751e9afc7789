"""Test examples of the clients' own."""

from typing import NamedTuple

import numpy as np

from fedjax_drag.types import Batch


class ClientTest(NamedTuple):
    """What each client is evaluated on and nobody trains on.

    Attributes:
      examples: of which they are; may be all test examples of the data set.
      indices: ``[H]`` int32, indices into ``examples``, client after client.
      counts: ``[M]`` int32, how many of them are each client's; may be 0.
    """

    examples: Batch
    indices: np.ndarray
    counts: np.ndarray


def of_owners(examples: Batch, owner: np.ndarray, num_clients: int) -> ClientTest:
    """The examples by the client that each belongs to, ``[N]``; -1 for none."""
    order = np.argsort(owner, kind="stable")
    order = order[owner[order] >= 0]
    counts = np.bincount(owner[order], minlength=num_clients)
    return ClientTest(examples, order.astype(np.int32), counts.astype(np.int32))
