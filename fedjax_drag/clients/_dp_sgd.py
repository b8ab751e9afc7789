"""DP-SGD: local steps in which no single example counts for much."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.privacy.gaussian import with_noise
from fedjax_drag.types import Batch, ClientRule, Downlink, GradFn, Params, Scalar


class dp_sgd(ClientRule):
    """Follows the mean of the examples' gradients, each of them clipped, with noise on their sum.

    ::

        w -= eta (sum_i min(1, C / ||grad f(w; z_i)||) grad f(w; z_i) + N(0, (z C)^2 I)) / B

    Protects the examples of a client from whoever sees its message, and not, as
    :func:`~fedjax_drag.privacy.central_dp` and :func:`~fedjax_drag.privacy.local_dp` do, that a client takes part.
    What an example's owner is guaranteed depends on the mini-batches that the client draws: those of a local pass are
    no Poisson samples, and the history reports no ``epsilon``.

    Args:
      clip: ``C``, the greatest length of an example's gradient, > 0. One that is not finite counts as 0.
      noise_multiplier: ``z``, >= 0; 0 is gradient clipping of single examples.

    Returns:
      A :class:`~fedjax_drag.types.ClientRule`. ``B`` is the number of examples that are no padding. A step takes the
      time and the memory of ``B`` gradients at once.

    Raises:
      ValueError: if ``clip`` is not positive or ``noise_multiplier`` is negative.

    References:
      Abadi et al., Deep learning with differential privacy, 2016, Algorithm 1.
    """

    clip: Scalar
    noise_multiplier: Scalar

    def check(self) -> None:
        checks.positive("clip", self.clip)
        checks.in_range("noise_multiplier", self.noise_multiplier, 0.0)

    @property
    def keyed(self) -> bool:
        return True

    def direction(
        self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch, *, key: Any = None
    ) -> tuple[Params, Any]:
        del downlink
        singles = jax.tree.map(lambda x: x[:, None], batch)  # a batch of one for each example
        gradients = jax.vmap(lambda example: grad_fn(w, Batch(*example)))(singles)
        real = jnp.ones(batch.num_examples, bool) if batch.real is None else batch.real
        norm = tree.norms(gradients)
        scale = jnp.where(real & tree.usable_rows(gradients), clip_scale(norm, self.clip), 0.0)
        total = with_noise(key, tree.weighted_sum(scale, gradients), self.noise_multiplier * self.clip)
        return jax.tree.map(lambda g, p: (g / real.sum()).astype(p.dtype), total, w), carry
