"""Gossip averaging."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.graphs._graph import Neighbours
from fedjax_drag.graphs.mixing._mixing import Forge, Mixed, Mixing, toward
from fedjax_drag.types import Deltas, Params


class gossip(Mixing):
    """The weighted mean over the neighbours and the client itself: ``x_i <- sum_j W_ij x_j``.

    One malicious neighbour moves a client anywhere.

    References:
      Xiao and Boyd, Fast linear iterations for distributed averaging, 2004; as a method to train, Lian et al., Can
      decentralized algorithms outperform centralized algorithms?, NeurIPS 2017.
    """

    def mix(self, own: Params, others: Deltas, weight: Float[Array, " degree"], key: PRNGKeyArray) -> Mixed:
        del key
        return toward(own, others, weight), weight

    def everywhere(
        self,
        own: Deltas,
        sent: Deltas,
        near: Neighbours,
        keys: PRNGKeyArray,
        forge: Forge | None = None,
    ) -> tuple[Deltas, Float[Array, "nodes degree"]]:
        """As one product with the mixing matrix."""
        if forge is not None:
            return super().everywhere(own, sent, near, keys, forge)
        nodes = len(near.nodes)
        matrix = jnp.zeros((nodes, nodes)).at[jnp.arange(nodes)[:, None], near.nodes].add(near.weight)
        left = 1 - near.weight.sum(1)

        def leaf(mine: jax.Array, theirs: jax.Array) -> jax.Array:
            return (tree.expand(left, mine) * mine + theirs).astype(mine.dtype)

        return jax.tree.map(leaf, own, tree.mix(matrix, sent)), near.weight
