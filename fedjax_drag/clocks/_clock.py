"""What a clock is: the time that clients need for their work."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.kinds import Kind
from fedjax_drag.types import Part
from fedjax_drag.types._part import undefined


class Work(NamedTuple):
    """What some clients do between the server's message and their answer.

    Attributes:
      client_ids: ``[S]`` int32.
      round: in which each starts, ``[S]`` int32, from 0.
      steps: local steps of each, ``[S]`` int32.
      malicious: ``[S]`` bool.
      bytes_down: of the server's message, the same for all; a scalar.
      bytes_up: of a client's message, the same for all; a scalar.
    """

    client_ids: Int[Array, " clients"]
    round: Int[Array, " clients"]
    steps: Int[Array, " clients"]
    malicious: Bool[Array, " clients"]
    bytes_down: Any = 0
    bytes_up: Any = 0


class Clock(Part):
    """How long clients take; a clock is a subclass with :meth:`seconds`, pure and jittable."""

    def seconds(self, key: PRNGKeyArray, work: Work) -> Float[Array, " clients"]:
        """Seconds from the server's message to each client's answer, ``[S]`` float32, finite and >= 0.

        Args:
          key: the same in every round of a run; what a clock draws for a client is derived from it and the client's id.
          work: what they do.
        """
        raise undefined(self, "seconds")


CLOCK = Kind(Clock, "a clock, such as fd.clocks.log_normal(sigma=1.0)", ("clocks",))


def duration(work: Work, seconds_per_step: Any, latency: Any, bandwidth: Any) -> Float[Array, " clients"]:
    """``latency + steps seconds_per_step + bytes / bandwidth`` of each client, with numbers or one for each.

    Messages take no time where ``bandwidth`` is None.
    """
    seconds = jnp.asarray(latency + work.steps * seconds_per_step, jnp.float32)
    num_bytes = 1.0 * (work.bytes_down + work.bytes_up)  # more than an int32 counts
    return seconds if bandwidth is None else seconds + num_bytes / bandwidth


def check_speeds(seconds_per_step: Any, latency: Any, bandwidth: Any) -> None:
    """Refuses times below 0, and a bandwidth that is not positive."""
    checks.in_range("seconds_per_step", seconds_per_step, 0.0)
    checks.in_range("latency", latency, 0.0)
    if bandwidth is not None:
        checks.positive("bandwidth", bandwidth)
