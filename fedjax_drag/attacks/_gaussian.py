"""Gaussian noise."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import client_keys, replace_malicious
from fedjax_drag.types import Attack, Scalar, Uplink


class gaussian(Attack):
    """Malicious clients send noise, or their honest message plus noise.

    The numbers are drawn independently from ``N(0, sigma^2)``, for each malicious client and round.

    Args:
      sigma: standard deviation > 0, in the units of the deltas; 200 in Blanchard et al.
      additive: whether the noise is added to the honest message instead of replacing it.

    Raises:
      ValueError: if ``sigma`` is not positive.

    Knows:
      nothing.

    References:
      Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent, 2017; Section V of
      ClusterGuardFL. Interpretation: the latter gives no ``sigma``, nor does it say whether the noise is added; the
      former replaces the message.
    """

    sigma: Scalar
    additive: bool = False

    def check(self) -> None:
        checks.positive("sigma", self.sigma)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, client_ids: jax.Array, **_: Any) -> Uplink:
        keys = client_keys(key, client_ids)

        def leaf(place: int, x: jax.Array) -> jax.Array:
            honest = tree.accurate(x)

            def noise(key: jax.Array) -> jax.Array:
                return jax.random.normal(jax.random.fold_in(key, place), x.shape[1:], honest.dtype)

            return jnp.where(self.additive, honest, 0) + self.sigma * jax.vmap(noise)(keys)

        leaves, structure = jax.tree.flatten(uplink)
        forged = structure.unflatten(leaf(place, x) for place, x in enumerate(leaves))
        return replace_malicious(uplink, malicious, forged)
