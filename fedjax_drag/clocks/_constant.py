"""All clients are equally fast."""

from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag.clocks._clock import Clock, Work, check_speeds, duration
from fedjax_drag.types import Scalar


class constant(Clock):
    """Gives every client the same speed: ``latency + steps seconds_per_step + bytes / bandwidth``.

    Args:
      seconds_per_step: of a local step, >= 0.
      latency: seconds that every answer takes beside that, >= 0.
      bandwidth: bytes in a second, > 0, both ways; None for messages that take no time.

    Returns:
      A :class:`Clock`.

    Raises:
      ValueError: if an argument is out of range.
    """

    seconds_per_step: Scalar = 1.0
    latency: Scalar = 0.0
    bandwidth: Scalar | None = None

    def check(self) -> None:
        check_speeds(self.seconds_per_step, self.latency, self.bandwidth)

    def seconds(self, key: PRNGKeyArray, work: Work) -> Float[Array, " clients"]:
        del key
        return duration(work, self.seconds_per_step, self.latency, self.bandwidth)
