"""The mean, pushed until the sum of its squared distances from the clients is as large as that of a client."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import HiddenPush
from fedjax_drag.types import Deltas, Params


class min_sum(HiddenPush):
    """All malicious clients send ``mean + gamma p``, in sum no further from the clients than some client is.

    ``gamma`` is the largest with ``sum_k ||mean + gamma p - g_k||^2 <= max_j sum_k ||g_j - g_k||^2``, over all
    leaves of the delta; ``aux`` is pushed by the same ``gamma`` times its own ``p``. With ``bound="min"`` the
    right side is the minimum over the clients j instead.

    Args:
      perturbation: p: ``"std"``, minus the standard deviation in each coordinate; ``"unit"``, minus the mean over its
        norm, in ``aux`` too that of the delta; ``"sign"``, minus the mean's signs. Where p is 0, they send the mean.
      knowledge: whose messages mean, p and distances are taken over.
      bound: whose sum of squared distances is not exceeded: ``"max"``, that of the client furthest from the others, as
        in the paper's equation and in FLPoison; ``"min"``, that of the client closest to them, as in the code that the
        authors released. The push is then as long as the closest client's distance from the mean, not the furthest's.

    Raises:
      ValueError: if ``perturbation``, ``knowledge`` or ``bound`` is unknown.

    Knows:
      the messages of the round: with ``"full"`` those of all benign clients, with ``"partial"`` what its own clients
      would honestly have sent.

    References:
      Shejwalkar and Houmansadr, Manipulating the Byzantine: optimizing model poisoning attacks and defenses for
      federated learning, 2021, the Min-Sum attack. Deviation: the paper searches for gamma; here it is in closed form,
      shortened by one part in 10,000 for rounding.
    """

    bound: Literal["max", "min"] = "max"

    def check(self) -> None:
        super().check()
        checks.one_of("bound", self.bound, ("max", "min"))

    def reach(self, centred: Deltas, observed: Bool[Array, " clients"], p: Params) -> Float[Array, ""]:
        """The largest, or the smallest, distance of a client from the mean.

        The squared distances of n clients to any x sum to n ||x - mean||^2 plus their sum for x = mean: a bound on the
        sum is a bound on the distance to the mean, in every direction.
        """
        del p
        from_mean = tree.norms(centred)
        furthest = from_mean.max()
        return furthest if self.bound == "max" else jnp.min(from_mean, where=observed, initial=furthest)
