"""Sign flipping."""

from typing import Any

import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.attacks._attack import scale_rows
from fedjax_drag.types import Attack


def sign_flip(scale: Any = 1.0) -> Attack:
    """Malicious clients send ``-scale`` times their honest message.

    Args:
      scale: s > 0 in ``g <- -s g``.

    Raises:
      ValueError: if ``scale`` is not positive.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section VI.
    """
    checks.positive("scale", scale)

    def forge(key, uplink, malicious, **_):
        del key
        return scale_rows(uplink, jnp.where(malicious, -scale, 1.0))

    return Attack(forge=forge)
