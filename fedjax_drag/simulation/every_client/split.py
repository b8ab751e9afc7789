"""Examples that each client holds out of its training, on which the global model is evaluated client by client."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int

from fedjax_drag.data import FederatedDataset
from fedjax_drag.types import Batch

DEFAULT_FRACTION = 0.2
"""Share of its examples that a client holds out with ``evaluate_clients=True``."""


class HeldOut(NamedTuple):
    """Held-out examples, client by client.

    Attributes:
      examples: indices ``[H]`` into the training examples, or the examples themselves ``[H, ...]``; padded behind the
        last client's.
      counts: ``[M]`` int32, how many of them are each client's.
    """

    examples: Int[Array, " examples"] | Batch
    counts: Int[Array, " federation"]

    def of(self, clients: np.ndarray) -> "HeldOut":
        """Those of the clients that are marked in ``clients`` ``[M]`` bool, on the host."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        return _on_host(np.asarray(self.examples)[clients[owner]], np.where(clients, self.counts, 0))

    def taken_from(self, train: Batch) -> "HeldOut":
        """The same with the examples themselves in place of their indices, on the host."""
        return self._replace(examples=jax.tree.map(lambda x: x[self.examples], train))


class Split(NamedTuple):
    """A data set divided into what the clients train on and what they hold out.

    Attributes:
      training: the data set with shorter rows.
      held_out: of every client; None if nothing is held out.
    """

    training: FederatedDataset
    held_out: HeldOut | None


def hold_out(data: FederatedDataset, share: bool | float) -> Split:
    """Takes a share of each client's examples from the end of its row; rows are in random order.

    A client with n examples holds out ``round(share * n)`` of them, at least one and at most n - 1; a client with a
    single example holds out none.

    Args:
      data: a partitioned data set, which is not changed.
      share: in (0, 1); True for :data:`DEFAULT_FRACTION`, False for nothing.

    Raises:
      ValueError: an example is in the rows twice, so that what one row holds out could be trained on by another.
    """
    if not share:
        return Split(data, None)
    assert data.rows is not None
    assert data.counts is not None
    place = np.arange(data.rows.shape[1])
    examples = data.rows[place < data.counts[:, None]]
    if len(np.unique(examples)) < len(examples):
        raise ValueError(f"evaluate_clients={share}: an example is in the rows of clients twice; must be there once")
    fraction = DEFAULT_FRACTION if isinstance(share, bool | np.bool_) else share
    number = np.minimum(np.maximum(np.rint(fraction * data.counts), 1), data.counts - 1).astype(np.int32)
    left = data.counts - number
    held = data.rows[(place >= left[:, None]) & (place < data.counts[:, None])]
    rows = np.where(place < left[:, None], data.rows, 0)[:, : left.max()]
    return Split(dataclasses.replace(data, rows=rows, counts=left), _on_host(held, number))


def _on_host(examples: np.ndarray, counts: np.ndarray) -> HeldOut:
    both: list[Any] = [examples.astype(np.int32), counts.astype(np.int32)]
    return HeldOut(*both)
