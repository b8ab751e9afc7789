"""Noise injection by a random factor."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.attacks._attack import client_keys, scale_malicious
from fedjax_drag.types import Attack, Scalar, Uplink


class scale_noise(Attack):
    """Malicious clients send their honest message times ``p ~ N(0, variance)``.

    The factor is drawn independently for each malicious client and round.

    Knows:
      nothing but its own message.

    Args:
      variance: > 0; the papers use 3. Where 3 is to be the standard deviation, 9.

    Raises:
      ValueError: if ``variance`` is not positive.

    References:
      "Noise injection" in Xiao et al., Divergence-based adaptive aggregation for Byzantine robust
      federated learning, Section VI, and Zhu et al., DRAG. Interpretation: the 3 in the ``N(0, 3)`` of the former is
      the variance, as the latter says.
    """

    variance: Scalar = 3.0

    def check(self) -> None:
        checks.positive("variance", self.variance)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, client_ids: jax.Array, **_: Any) -> Uplink:
        factor = jnp.sqrt(self.variance) * jax.vmap(jax.random.normal)(client_keys(key, client_ids))
        return scale_malicious(uplink, malicious, factor)
