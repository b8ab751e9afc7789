"""Noise in the inputs of malicious clients."""

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import in_fraction
from fedjax_drag.types import Attack, Batch, Scalar


class feature_noise(Attack):
    """Malicious clients train on inputs with Gaussian noise; targets stay.

    The same ``floor(fraction * n_m)`` examples of a malicious client have noise in every round, and an example has the
    same noise whenever it is drawn.

    Knows:
      nothing.

    Args:
      sigma: standard deviation > 0, in the units of what a model sees.
      fraction: of a malicious client's examples, in [0, 1].

    Raises:
      ValueError: if an argument is out of range; while the run is built, if inputs are tokens.

    References:
      The noisy clients of Muñoz-González, Co and Lupu, Byzantine-robust federated machine learning through adaptive
      model averaging, 2019. Deviation: their noise is uniform, and pixels are cropped to their range afterwards.
    """

    sigma: Scalar = 1.0
    fraction: Scalar = 1.0

    def check(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.in_range("fraction", self.fraction, 0.0, 1.0)

    def poison(
        self, key: jax.Array, batch: Batch, *, positions: jax.Array, num_examples: jax.Array, num_classes: int
    ) -> Batch:
        del num_classes
        if not jnp.issubdtype(getattr(batch.x, "dtype", int), jnp.floating):
            inputs = tree.described(batch.x, "B")
            raise checks.ArgumentError("feature_noise", f"needs one array of numbers as inputs, not {inputs}")
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, positions)
        noise = jax.vmap(lambda own: jax.random.normal(own, batch.x.shape[1:], batch.x.dtype))(keys)
        noisy = tree.expand(in_fraction(positions, num_examples, self.fraction), batch.x)
        return batch._replace(x=jnp.where(noisy, batch.x + self.sigma * noise, batch.x))
