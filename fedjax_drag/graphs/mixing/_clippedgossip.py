"""ClippedGossip, also called self-centered clipping."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.graphs.mixing._mixing import Mixed, Mixing, toward
from fedjax_drag.types import Deltas, Params, Scalar


class clippedgossip(Mixing):
    """Gossip in which no neighbour moves a client further than a radius.

    ::

        x_i <- sum_j W_ij (x_i + clip(x_j - x_i, tau_i)),   clip(z, tau) = min(1, tau / ||z||) z

    Args:
      radius: tau, > 0, the same for all clients. None for a radius of each client: the distance to the farthest of its
        neighbours after ``num_byzantine`` of them are left out, or to the nearest where no more are left.
      num_byzantine: how many of a client's neighbours may be malicious; with ``radius=None`` only.

    Raises:
      ValueError: if an argument is out of range.

    References:
      He, Karimireddy and Jaggi, Byzantine-robust decentralized learning via ClippedGossip, 2022, Algorithm 1.
      Interpretation: the theorem's radius needs to know who is honest; ``radius=None`` is that of the authors' code,
      the second largest distance, for any number in the place of one.
    """

    radius: Scalar | None = None
    num_byzantine: int = 1

    def check(self) -> None:
        if self.radius is not None:
            checks.positive("radius", self.radius)
        checks.count("num_byzantine", self.num_byzantine)

    def mix(self, own: Params, others: Deltas, weight: Float[Array, " degree"], key: PRNGKeyArray) -> Mixed:
        del key
        distance = tree.norms(jax.tree.map(lambda x, y: y - x, own, others))
        radius = self._adaptive(distance, weight > 0) if self.radius is None else self.radius
        weight *= clip_scale(distance, radius)
        return toward(own, others, weight), weight

    def _adaptive(self, distance: Float[Array, " degree"], there: jax.Array) -> Float[Array, ""]:
        ascending = jnp.sort(jnp.where(there, distance, jnp.inf))
        return ascending[jnp.maximum(there.sum() - 1 - self.num_byzantine, 0)]
