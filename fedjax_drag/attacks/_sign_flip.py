"""Sign flipping."""

from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.attacks._attack import scale_malicious
from fedjax_drag.types import Attack, Uplink


def sign_flip(scale: Any = 1.0) -> Attack:
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
    checks.positive("scale", scale)

    def forge(key: jax.Array, uplink: Uplink, malicious: jax.Array, **_: Any) -> Uplink:
        del key
        return scale_malicious(uplink, malicious, -scale)

    return Attack(forge=forge)
