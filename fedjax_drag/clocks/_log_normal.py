"""Clients whose speeds are log-normal."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.clocks._clock import Clock, Work, check_speeds, duration
from fedjax_drag.types import Scalar


class log_normal(Clock):
    """Draws the speed of every client once, and with ``jitter`` another factor in every round.

    ::

        seconds_m = latency + steps seconds_per_step exp(sigma z_m + jitter y_mt) + bytes / bandwidth

    with standard normal ``z_m`` of the client and ``y_mt`` of the client and the round.

    Args:
      sigma: of the logarithm of the clients' speeds, in [0, 10]; with 1.0 the slowest tenth takes at least 3.6 times as
        long as the median client, with 10.0 370,000 times: beyond, times would leave float32.
      seconds_per_step: of the median client's local step, >= 0.
      latency: as of :func:`constant`.
      bandwidth: as of :func:`constant`.
      jitter: of the logarithm from round to round, in [0, 5].

    Returns:
      A :class:`Clock`.

    Raises:
      ValueError: if an argument is out of range.
    """

    sigma: Scalar = 1.0
    seconds_per_step: Scalar = 1.0
    latency: Scalar = 0.0
    bandwidth: Scalar | None = None
    jitter: Scalar = 0.0

    def check(self) -> None:
        checks.in_range("sigma", self.sigma, 0.0, 10.0)
        checks.in_range("jitter", self.jitter, 0.0, 5.0)
        check_speeds(self.seconds_per_step, self.latency, self.bandwidth)

    def seconds(self, key: PRNGKeyArray, work: Work) -> Float[Array, " clients"]:
        def factor(client: Array, started: Array) -> Array:
            own = jax.random.fold_in(key, client)
            of_round = jax.random.fold_in(jax.random.fold_in(own, 1), started)
            return jnp.exp(self.sigma * jax.random.normal(own) + self.jitter * jax.random.normal(of_round))

        factors = jax.vmap(factor)(work.client_ids, work.round)
        return duration(work, self.seconds_per_step * factors, self.latency, self.bandwidth)
