"""Malicious clients that answer early, or late."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.clocks._clock import CLOCK, Clock, Work
from fedjax_drag.types import Scalar


class attackers(Clock):
    """Multiplies the time of malicious clients: ``factor * seconds_m``.

    Args:
      clock: of all clients.
      factor: > 0; below 1 malicious clients answer early, above 1 late, and their messages are staler than others'.

    Returns:
      A :class:`Clock`.

    Raises:
      ValueError: if ``factor`` is not positive.
    """

    clock: Clock
    factor: Scalar

    def check(self) -> None:
        CLOCK.check("clock", self.clock)
        checks.positive("factor", self.factor)

    def seconds(self, key: PRNGKeyArray, work: Work) -> Float[Array, " clients"]:
        return jnp.where(work.malicious, self.factor, 1.0) * self.clock.seconds(key, work)
