"""Sign flipping."""

from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.attacks._attack import scale_malicious
from fedjax_drag.types import Attack, Scalar, Uplink


class sign_flip(Attack):
    """Malicious clients send ``-scale`` times their honest message.

    Knows:
      nothing but its own message.

    Args:
      scale: s > 0 in ``g <- -s g``.

    Raises:
      ValueError: if ``scale`` is not positive.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section VI.
    """

    scale: Scalar = 1.0

    def check(self) -> None:
        checks.positive("scale", self.scale)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, **_: Any) -> Uplink:
        del key
        return scale_malicious(uplink, malicious, -self.scale)
