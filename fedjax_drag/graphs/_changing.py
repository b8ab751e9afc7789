"""A graph that is another one in every round."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from fedjax_drag.graphs._graph import GRAPH, Graph, Neighbours


class changing(Graph):
    """In every round the clients take the places of a graph at random: of a ring, a ring in another order.

    Args:
      graph: whose places they take.

    Raises:
      ValueError: if ``graph`` is none.

    References:
      Koloskova et al., A unified theory of decentralized SGD with changing topology and local updates, ICML 2020.
    """

    graph: Graph

    def check(self) -> None:
        GRAPH.check("graph", self.graph)

    def adjacency(self, num_nodes: int) -> np.ndarray:
        """Of ``graph``: the same places in every round."""
        return self.graph.adjacency(num_nodes)

    def weights(self, num_nodes: int) -> np.ndarray:
        """Of ``graph``: the same places in every round."""
        return self.graph.weights(num_nodes)

    def at(self, num_nodes: int, key: PRNGKeyArray) -> Neighbours:
        client = jax.random.permutation(key, num_nodes)  # at each place
        place = jnp.argsort(client)
        index, weight = self.graph.at(num_nodes, key)
        return Neighbours(client[index[place]].astype(jnp.int32), weight[place])
