"""Label flipping."""

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.attacks._attack import in_fraction
from fedjax_drag.types import Attack, Batch, Scalar


class label_flip(Attack):
    """Malicious clients train with labels ``C - 1 - y`` on a fraction of their data.

    The same ``floor(fraction * n_m)`` examples are flipped in every round. The attack succeeds on a test example if
    the model predicts ``C - 1 - y``.

    Knows:
      nothing.

    Args:
      fraction: of a malicious client's examples, in [0, 1]. 0.5 in the BR-DRAG paper, 1 in ClusterGuardFL.

    Raises:
      ValueError: if ``fraction`` is out of range.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning,
      Section VI; ClusterGuardFL, Section V.
    """

    fraction: Scalar = 0.5

    def check(self) -> None:
        checks.in_range("fraction", self.fraction, 0.0, 1.0)

    def poison(
        self, key: jax.Array, batch: Batch, *, positions: jax.Array, num_examples: jax.Array, num_classes: int
    ) -> Batch:
        del key
        flipped = in_fraction(positions, num_examples, self.fraction)
        return batch._replace(y=jnp.where(flipped, num_classes - 1 - batch.y, batch.y))

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int) -> tuple[jax.Array, jax.Array]:
        return x, num_classes - 1 - y
