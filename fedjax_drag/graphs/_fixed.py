"""Graphs that are the same whatever is drawn."""

import numpy as np

from fedjax_drag import checks
from fedjax_drag.graphs._graph import Graph


class ring(Graph):
    """Every client has two neighbours, the one before and the one after it by id."""

    def adjacency(self, num_nodes: int) -> np.ndarray:
        return circulant(num_nodes, (1,))


class torus(Graph):
    """A grid whose opposite sides are neighbours: four for every client. Client ids go along the rows.

    Args:
      rows: of the grid, which must divide the number of clients.

    Raises:
      ValueError: if ``rows`` is no count of at least 1; when a run starts, if it does not divide the number of clients.
    """

    rows: int

    def check(self) -> None:
        checks.count("rows", self.rows, 1)

    def adjacency(self, num_nodes: int) -> np.ndarray:
        if num_nodes % self.rows:
            raise checks.ArgumentError("rows", f"must divide the {num_nodes} clients", given=self.rows)
        columns = num_nodes // self.rows
        along, across = circulant(columns, (1,)), circulant(self.rows, (1,))
        return np.kron(np.eye(self.rows), along) + np.kron(across, np.eye(columns)) > 0


class complete(Graph):
    """Everybody is everybody's neighbour, with the weight ``1 / N``: gossip is then the mean over all clients."""

    def adjacency(self, num_nodes: int) -> np.ndarray:
        return ~np.eye(num_nodes, dtype=bool)


def circulant(num_nodes: int, offsets: tuple[int, ...]) -> np.ndarray:
    """The graph in which node i has the neighbours ``i + offset`` and ``i - offset`` modulo N."""
    apart = (np.arange(num_nodes) - np.arange(num_nodes)[:, None]) % num_nodes
    return np.isin(apart, [o % num_nodes for o in offsets] + [-o % num_nodes for o in offsets]) & (apart > 0)
