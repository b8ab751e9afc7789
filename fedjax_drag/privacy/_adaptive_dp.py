"""Client-level differential privacy with a clip that follows a quantile of the deltas' lengths."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.privacy._noised_mean import KeptNorms, NoisedMean
from fedjax_drag.types import Scalar


class adaptive_dp(NoisedMean):
    """:func:`~fedjax_drag.privacy.central_dp` with a clip that a given share of the deltas does not exceed.

    ::

        b_m = 1 if ||g_m|| <= C else 0
        b = (sum_m (b_m - 1/2) + N(0, sigma_b^2)) / S + 1/2;   C <- C exp(-eta_C (b - gamma))
        z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)               the noise multiplier of the sum of the deltas

    Sum and count together cost as much privacy as the sum alone with ``z``.

    Args:
      aggregator: as there.
      clip: ``C`` of the first round.
      noise_multiplier: ``z`` of both, >= 0; below ``2 sigma_b``.
      delta: as there.
      noise_cohort_size: as there; ``sigma_b`` and ``b`` then have the noise of that cohort.
      population: as there.
      quantile: ``gamma`` in [0, 1], the share of the deltas that is not clipped. Paper: 0.5, the median.
      clip_step_size: ``eta_C`` > 0, by which the logarithm of the clip moves at most. Paper: 0.2.
      count_noise: ``sigma_b / S`` > 0, standard deviation of the noise on the count, by the cohort. Paper: 1/20.

    Notes:
      As there; the metrics have ``clip`` as well, that of the round, which is private.

    Raises:
      ValueError: as there, or if ``quantile``, ``clip_step_size`` or ``count_noise`` is out of range, or
        ``count_noise`` too small for ``noise_multiplier`` (the parameters become NaN where these, or the number of
        clients expected, are traced).

    Breakdown point:
      f clients shift the step by at most 2 f / S x clip, and the next clip by a factor ``exp(eta_C f / S)``

    Cost:
      3 passes over the deltas, and d normal draws

    References:
      Andrew et al., Differentially private learning with adaptive clipping, NeurIPS 2021: the geometric update of the
      clip, and Theorem 1 for the noise multiplier of the deltas.
    """

    quantile: Scalar = 0.5
    clip_step_size: Scalar = 0.2
    count_noise: Scalar = 0.05

    reports_clip = True

    def check(self) -> None:
        super().check()
        checks.in_range("quantile", self.quantile, 0.0, 1.0)
        checks.positive("clip_step_size", self.clip_step_size)
        checks.positive("count_noise", self.count_noise)

    def noise_on_deltas(self, cohort: Any) -> jax.Array:
        twice = 2 * self.count_noise * cohort
        given = self.noise_multiplier
        if checks.is_concrete(given) and checks.is_concrete(twice) and given >= twice:
            allowed = f"below {float(twice):g}, twice the noise on the count of {float(twice) / 2:g} clients"
            said = f"must be {allowed}; raise count_noise or the cohort"
            raise checks.ArgumentError("noise_multiplier", said, given=float(given))
        z = jnp.asarray(given, jnp.float32)
        return z / jnp.sqrt(1 - (z / twice) ** 2)  # (z^-2 - (2 sigma_b)^-2)^(-1/2), also for z = 0

    def next_clip(self, key: PRNGKeyArray, clip: jax.Array, kept: KeptNorms, expected: Any) -> jax.Array:
        centred = jnp.where(kept.who.counted, kept.within - 0.5, 0.0).sum()  # one client changes it by 1/2
        b = centred / expected + self.count_noise * jax.random.normal(key) + 0.5
        return clip * jnp.exp(-self.clip_step_size * (b - self.quantile))
