"""What a graph of clients is: edges, and the weights with which neighbours are averaged."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from fedjax_drag.checks import ArgumentError
from fedjax_drag.kinds import Kind
from fedjax_drag.types import Part
from fedjax_drag.types._part import undefined


class Neighbours(NamedTuple):
    """The neighbours of each node, padded to the D of the node that has most.

    Attributes:
      nodes: ``[N, D]`` int32, which nodes they are; anything where the weight is 0.
      weight: ``[N, D]``, how much each counts, 0 for padding. What is missing to 1 is the weight of the node itself.
    """

    nodes: Int[Array, "nodes degree"]
    weight: Float[Array, "nodes degree"]


class Graph(Part):
    """Who exchanges models with whom. The nodes are the clients of the federation, by id.

    A graph is a subclass with ``adjacency``. The weights are those of Metropolis and Hastings, by which every node
    needs to know the degrees of its neighbours only, unless the subclass has others.
    """

    def adjacency(self, num_nodes: int) -> np.ndarray:
        """Which nodes are neighbours: bool ``[N, N]``, symmetric, False on the diagonal; on the host."""
        raise undefined(self, "adjacency")

    def weights(self, num_nodes: int) -> np.ndarray:
        """The mixing matrix W ``[N, N]``: symmetric, >= 0, rows and columns sum to 1; on the host.

        ``W_ij = 1 / (1 + max(d_i, d_j))`` for neighbours of degrees ``d_i`` and ``d_j``, ``W_ii = 1 - sum_j W_ij``.
        """
        adjacent = self.adjacency(num_nodes)
        degree = adjacent.sum(1)
        return with_own(np.where(adjacent, 1 / (1 + np.maximum(degree, degree[:, None])), 0.0))

    def at(self, num_nodes: int, key: PRNGKeyArray) -> Neighbours:
        """The neighbours in a round, given its key; by default the same in every round."""
        del key
        return Neighbours(*map(jnp.asarray, _listed(self, num_nodes)))


GRAPH = Kind(Graph, "a graph, such as fd.graphs.ring()", ("graphs",))


def with_own(weights: np.ndarray) -> np.ndarray:
    """Weights of neighbours, with what is missing to 1 in each row on the diagonal."""
    return weights + np.diag(1 - weights.sum(1))


@functools.lru_cache(maxsize=64)
def _listed(graph: Graph, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weight of :class:`Neighbours`, on the host."""
    weights = graph.weights(num_nodes)
    weights = np.where(np.eye(num_nodes, dtype=bool), 0.0, weights)
    most = max(int((weights != 0).sum(1).max()), 1)
    index = np.argsort(weights == 0, axis=1, kind="stable")[:, :most]
    return index.astype(np.int32), np.take_along_axis(weights, index, axis=1).astype(np.float32)


@functools.lru_cache(maxsize=64)
def num_edges(graph: Graph, num_nodes: int) -> int:
    """Number of the edges."""
    return int(np.triu(graph.weights(num_nodes) != 0, 1).sum())


def spectral_gap(graph: Graph, num_nodes: int) -> float:
    """``1 - |lambda_2|``, where ``lambda_2`` is the second largest eigenvalue of the mixing matrix in size; in [0, 1].

    A round of gossip multiplies the squared distance of the models from their mean by ``|lambda_2|^2`` or less. A graph
    that is not connected has 0, the complete one 1.

    Args:
      graph: of one round, if it changes.
      num_nodes: N.
    """
    GRAPH.check("graph", graph)
    sizes = np.sort(np.abs(np.linalg.eigvalsh(graph.weights(num_nodes))))
    return float(1 - sizes[-2]) if num_nodes > 1 else 1.0


_MOST_DRAWS = 100


def connected(graph: Graph, num_nodes: int, draws: Callable[[int], np.ndarray]) -> np.ndarray:
    """The first connected one of ``draws(0), draws(1), ...``.

    Raises:
      ValueError: none of the first is.
    """
    from scipy.sparse.csgraph import connected_components  # here, because it is slow to import

    for attempt in range(_MOST_DRAWS):
        adjacent = draws(attempt)
        if connected_components(adjacent, directed=False)[0] == 1:
            return adjacent
    said = f"{_MOST_DRAWS} draws for {num_nodes} clients were not connected; must have more edges"
    raise ArgumentError(f"graph={graph!r}", said)
