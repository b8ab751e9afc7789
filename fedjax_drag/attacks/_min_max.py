"""The mean, pushed by as much as the two most distant clients are apart."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import tree
from fedjax_drag.attacks._attack import HiddenPush
from fedjax_drag.kernels.distances import distances
from fedjax_drag.types import Deltas, Params


class min_max(HiddenPush):
    """All malicious clients send ``mean + gamma p``, no further from any client than some two clients are apart.

    ``gamma`` is the largest with ``max_k ||mean + gamma p - g_k|| <= max_jk ||g_j - g_k||``, over all leaves of the
    delta; ``aux`` is pushed by the same ``gamma`` times its own ``p``.

    Args:
      perturbation: p: ``"std"``, minus the standard deviation in each coordinate; ``"unit"``, minus the mean over its
        norm, in ``aux`` too that of the delta; ``"sign"``, minus the mean's signs. Where p is 0, they send the mean.
      knowledge: whose messages mean, p and distances are taken over.

    Raises:
      ValueError: if ``perturbation`` or ``knowledge`` is unknown.

    Knows:
      the messages of the round: with ``"full"`` those of all benign clients, with ``"partial"`` what its own clients
      would honestly have sent.

    References:
      Shejwalkar and Houmansadr, Manipulating the Byzantine: optimizing model poisoning attacks and defenses for
      federated learning, 2021, the Min-Max attack. Deviation: the paper searches for gamma; here it is the smallest of
      the clients' roots of a quadratic equation, shortened by one part in 10,000 for rounding.
    """

    def reach(self, centred: Deltas, observed: Bool[Array, " clients"], p: Params) -> Float[Array, ""]:
        """The root t of ``||t u - x_k|| = R`` for the unit vector u along p, the smallest over all clients k.

        In units of R, with ``h = ||x_k||`` and c the cosine of x_k with p, it is ``t = h c + sqrt(1 - h^2 (1 - c^2))``.
        The mean is inside the hull of the clients, so h is below 1.
        """
        farthest = jnp.where(observed[:, None] & observed, distances(centred), 0).max()
        h, c = tree.norms(centred) * tree.inverse(farthest), tree.cosines(centred, p)
        root = h * c + jnp.sqrt(jnp.maximum(1 - jnp.square(h) * (1 - jnp.square(c)), 0))
        return farthest * jnp.maximum(jnp.min(root, where=observed, initial=2), 0)
