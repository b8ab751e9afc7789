"""Dissensus."""

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.types import Attack, Deltas, Params, Scalar


class dissensus(Attack):
    """In a graph, malicious clients push each neighbour away from its honest neighbours.

    What the malicious neighbours of client i send to it, all the same, undoes what gossip would bring it from the
    honest ones, times ``strength``::

        x_i - strength sum_{j honest} W_ij (x_j - x_i) / sum_{j malicious} W_ij

    With ``strength`` 1 gossip leaves the client where it is; above, the clients drift apart.

    Args:
      strength: epsilon, > 0.

    Raises:
      ValueError: if ``strength`` is not positive; when a run starts, if the method has no graph.

    Knows:
      the models and the mixing weights of its neighbours' neighbours.

    References:
      He, Karimireddy and Jaggi, Byzantine-robust decentralized learning via ClippedGossip, 2022, the dissensus
      attack, of which its experiments take the strength 1.5.
    """

    strength: Scalar = 1.5

    def check(self) -> None:
        checks.positive("strength", self.strength)

    def forge_for(self, own: Params, others: Deltas, weight: jax.Array, malicious: jax.Array) -> Deltas:
        honest = jnp.where(malicious, 0.0, weight)
        drawn = tree.weighted_sum(honest, jax.tree.map(lambda x, y: y - x, own, others))
        factor = self.strength * tree.inverse((weight - honest).sum())
        forged = jax.tree.map(lambda x, v: (x - factor * v).astype(x.dtype), own, drawn)
        return jax.tree.map(lambda y, new: jnp.where(tree.expand(malicious, y), new, y), others, forged)
