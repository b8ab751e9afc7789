"""Graphs that are drawn once, from a seed of their own."""

import numpy as np

from fedjax_drag import checks
from fedjax_drag.graphs._fixed import circulant
from fedjax_drag.graphs._graph import Graph, connected


class random_regular(Graph):
    """A random connected graph in which every client has as many neighbours.

    Pairs of edges ``ab``, ``cd`` of a regular graph become ``ad``, ``cb``, ten times as often as there are edges.

    Args:
      degree: neighbours of each client, at least 2.
      seed: of the graph; that of the run does not change it.

    Raises:
      ValueError: if an argument is no count; when a run starts, if ``degree`` is not below the number of clients, or
        both are odd.

    References:
      Milo et al., On the uniform generation of random graphs with prescribed degree sequences, 2003: the switching
      method.
    """

    degree: int
    seed: int = 0

    def check(self) -> None:
        checks.count("degree", self.degree, 2)
        checks.count("seed", self.seed)

    def adjacency(self, num_nodes: int) -> np.ndarray:
        if self.degree >= num_nodes or self.degree * num_nodes % 2:
            allowed = f"must be below the {num_nodes} clients, and even where these are odd"
            raise checks.ArgumentError("degree", allowed, given=self.degree)
        half = (num_nodes // 2,) if self.degree % 2 else ()
        regular = circulant(num_nodes, (*range(1, self.degree // 2 + 1), *half))
        return connected(
            self, num_nodes, lambda attempt: _switched(regular, np.random.default_rng([self.seed, attempt]))
        )


def _switched(adjacent: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    adjacent = adjacent.copy()
    edges = np.argwhere(np.triu(adjacent))
    for one, other in rng.integers(len(edges), size=(10 * len(edges), 2)):
        (a, b), (c, d) = edges[one], rng.permutation(edges[other])
        if len({a, b, c, d}) == 4 and not adjacent[a, d] and not adjacent[c, b]:
            for i, j, there in ((a, b, False), (c, d, False), (a, d, True), (c, b, True)):
                adjacent[i, j] = adjacent[j, i] = there
            edges[one], edges[other] = (a, d), (c, b)
    return adjacent


class erdos_renyi(Graph):
    """A random graph: every pair of clients is an edge with the same probability; drawn anew until it is connected.

    Args:
      p: the probability, in (0, 1].
      seed: of the graph; that of the run does not change it.

    Raises:
      ValueError: if an argument is out of range; when a run starts, if 100 draws are not connected.

    References:
      Gilbert, Random graphs, 1959; Erdos and Renyi, On random graphs, 1959.
    """

    p: float
    seed: int = 0

    def check(self) -> None:
        checks.in_range("p", self.p, 0.0, 1.0, open_low=True)
        checks.count("seed", self.seed)

    def adjacency(self, num_nodes: int) -> np.ndarray:
        def drawn(attempt: int) -> np.ndarray:
            rng = np.random.default_rng([self.seed, attempt])
            upper = np.triu(rng.random((num_nodes, num_nodes)) < self.p, 1)
            return upper | upper.T

        return connected(self, num_nodes, drawn)
