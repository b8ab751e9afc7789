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
      keeps_state: whether malicious clients keep momentum, and whatever else clients keep from round to round. Without,
        what they send with :func:`~fedjax_drag.clients.momentum_sgd` is ``1 - beta`` of a gradient, as in the code of
        bucketing (Karimireddy, He and Jaggi, 2022).

    Raises:
      ValueError: if ``scale`` is not positive.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section VI.
    """

    scale: Scalar = 1.0
    keeps_state: bool = True

    def check(self) -> None:
        checks.positive("scale", self.scale)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, **_: Any) -> Uplink:
        del key
        return scale_malicious(uplink, malicious, -self.scale)
