"""A graph from a list of edges."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.checks import ArgumentError, first_line
from fedjax_drag.graphs._graph import Graph, with_own


class from_edges(Graph):
    """The graph with these edges, each given once.

    Args:
      edges: pairs ``(i, j)`` of client ids, or triples ``(i, j, weight)`` of all edges, whose weights take the place of
        those of Metropolis and Hastings; or a text file with one of them in each line, between spaces or commas.

    Raises:
      ValueError: if the file cannot be read; when a run starts, if an edge is no pair of different clients, or the
        weights of a client's edges are negative or sum to more than 1.

    Examples:
      >>> star = fd.graphs.from_edges([(0, i) for i in range(1, 10)])
    """

    edges: str | Path | Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        rows: Any = self.edges
        if isinstance(self.edges, str | Path):
            try:
                lines = Path(self.edges).read_text(encoding="utf-8-sig").splitlines()
                rows = [tuple(map(float, line.replace(",", " ").split())) for line in lines if line.strip()]
            except (OSError, ValueError) as error:
                allowed = f"must be a file with two or three numbers in each line; {first_line(error)}"
                raise ArgumentError("edges", allowed, given=self.edges) from None
        try:
            object.__setattr__(self, "edges", tuple(map(tuple, rows)))  # which has a hash
        except TypeError:
            raise ArgumentError("edges", "must be pairs of client ids, or a file", given=rows) from None
        super().__post_init__()

    def adjacency(self, num_nodes: int) -> np.ndarray:
        return _matrix(self._table(num_nodes), num_nodes, weight=False) > 0

    def weights(self, num_nodes: int) -> np.ndarray:
        table = self._table(num_nodes)
        if table.shape[1] == 2:
            return super().weights(num_nodes)
        weights = _matrix(table, num_nodes, weight=True)
        if not ((weights >= 0).all() and weights.sum(1).max() <= 1 + 1e-6):  # so that NaN is refused
            raise ArgumentError("edges", "weights must be >= 0, those of a client's edges at most 1 together")
        return with_own(weights)

    def _table(self, num_nodes: int) -> np.ndarray:
        """The edges, ``[E, 2]`` or ``[E, 3]``."""
        allowed = f"must be pairs of different client ids in [0, {num_nodes - 1}], each once, all with weights or none"
        try:
            table = np.asarray(self.edges, float)
        except (ValueError, TypeError):
            raise ArgumentError("edges", allowed, given=self.edges) from None
        if table.ndim != 2 or table.shape[1] not in (2, 3):
            raise ArgumentError("edges", allowed, given=self.edges)
        pairs = np.sort(table[:, :2], axis=1)
        inside = (pairs == np.rint(pairs)).all() and (pairs >= 0).all() and (pairs < num_nodes).all()
        if not inside or (pairs[:, 0] == pairs[:, 1]).any() or len(np.unique(pairs, axis=0)) < len(pairs):
            raise ArgumentError("edges", allowed, given=self.edges)
        return table


def _matrix(table: np.ndarray, num_nodes: int, weight: bool) -> np.ndarray:
    """The symmetric matrix of the edges' weights, or of ones."""
    matrix, (i, j) = np.zeros((num_nodes, num_nodes)), table[:, :2].astype(int).T
    matrix[i, j] = matrix[j, i] = table[:, 2] if weight else 1.0
    return matrix
