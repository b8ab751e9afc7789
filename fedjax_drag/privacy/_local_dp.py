"""Differential privacy of clients that trust nobody, by noise that each adds to its own message."""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from fedjax_drag import kinds, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.checks import ArgumentError
from fedjax_drag.privacy.gaussian import check_gaussian, with_noise
from fedjax_drag.types import Guarantee, Scalar, Uplink, WrappedClientRule


class local_dp(WrappedClientRule):
    """Each client clips its own delta and adds noise to it before it is sent.

    ::

        g_m <- min(1, C / ||g_m||) g_m + N(0, (z C)^2 I)

    What the server does with the messages is post-processing, so that it goes with every rule of the deltas alone;
    rules that ask clients for more (``num_examples``, ``start_loss``, ``dissimilarity``) are refused. The noise of S
    clients adds up: the mean has ``sqrt(S)`` times the deviation that it has under
    :func:`~fedjax_drag.privacy.central_dp` with the same numbers. Malicious clients do not add noise; what they know of
    the others has it.

    Args:
      client: what the clients run, such as ``fd.clients.sgd()``.
      clip: ``C``, the greatest length of a delta, > 0. A delta that is not finite counts as 0.
      noise_multiplier: ``z``, >= 0.
      delta: at which the history reports ``epsilon``, spent by a client that took part in all rounds so far, whatever
        its data; default not at all. It takes ``dp-accounting`` (``pip install 'fedjax-drag[privacy]'``).

    Returns:
      A :class:`~fedjax_drag.types.ClientRule`.

    Raises:
      ValueError: if a number is out of range; when a run is traced, if clients send more than a delta.

    References:
      Kasiviswanathan et al., What can we learn privately?, 2011 (local privacy); Dwork and Roth, The algorithmic
      foundations of differential privacy, 2014, Appendix A (Gaussian mechanism), with the sensitivity ``2 C`` of two
      inputs of one client.
    """

    clip: Scalar
    noise_multiplier: Scalar
    delta: float | None = None

    def check(self) -> None:
        check_gaussian(self.clip, self.noise_multiplier, self.delta)
        kinds.CLIENT_RULE.check("client", self.client)
        if self.client.sends:
            raise ArgumentError(
                f"client={self.client.name}", "changes its messages already; must send its delta as it is"
            )

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(self.noise_multiplier, self.delta, local=True)

    @property
    def sends(self) -> bool:
        return True

    def send(self, key: PRNGKeyArray, uplink: Uplink) -> Uplink:
        if jax.tree.leaves(uplink.aux):
            raise ArgumentError(
                "local_dp", "the method's clients send more than a delta, which the noise would not cover"
            )
        alone = jax.tree.map(lambda x: x[None], uplink.delta)
        scale = jnp.where(tree.usable_rows(alone), clip_scale(tree.norms(alone), self.clip), 0.0)[0]
        # Not the product, which is NaN where 0 meets an entry that is not finite.
        clipped = jax.tree.map(lambda x: jnp.where(scale > 0, scale * tree.accurate(x), 0), uplink.delta)
        noised = with_noise(key, clipped, self.noise_multiplier * self.clip)
        return uplink._replace(delta=jax.tree.map(lambda new, old: new.astype(old.dtype), noised, uplink.delta))
