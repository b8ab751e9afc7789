"""Label flipping."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import in_fraction
from fedjax_drag.types import Attack, Batch, Scalar


class label_flip(Attack):
    """Malicious clients train with opposite targets on a fraction of their data.

    The same ``floor(fraction * n_m)`` examples are flipped in every round. The opposite of a target y is

    * ``C - 1 - y`` of a label, and of each token or pixel of an example; negative ones, which do not count, stay;
    * ``1 - y`` of each of several labels (integers ``[N, K]`` that are no classes);
    * ``2 a - y`` of a number, where a is the mean of the training targets, or of each of several numbers.

    Where examples have one label, the attack succeeds on a test example if the model predicts ``C - 1 - y``.

    Knows:
      nothing; of numbers the mean over all clients.

    Args:
      fraction: of a malicious client's examples, in [0, 1]. 0.5 in the BR-DRAG paper, 1 in ClusterGuardFL.
      target_mean: a, for targets that are numbers: one number or one for each target; a simulation supplies it.
      keeps_state: whether malicious clients keep momentum, and whatever else clients keep from round to round. Without,
        what they send with :func:`~fedjax_drag.clients.momentum_sgd` is ``1 - beta`` of a gradient, as in the code of
        bucketing (Karimireddy, He and Jaggi, 2022).

    Raises:
      ValueError: if ``fraction`` is out of range; while the run is built, if targets are numbers and ``target_mean`` is
        not given.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning,
      Section VI; ClusterGuardFL, Section V. Of numbers: inverse flipping of Jagielski et al., Manipulating machine
      learning: Poisoning attacks and countermeasures for regression learning, IEEE S&P 2018. Deviation: they take
      ``1 - y`` of targets scaled to [0, 1], the mirror image about the middle of the range, which one outlier moves;
      here it is that about the mean.
    """

    fraction: Scalar = 0.5
    target_mean: Scalar | None = None
    keeps_state: bool = True

    def check(self) -> None:
        checks.in_range("fraction", self.fraction, 0.0, 1.0)
        if self.target_mean is not None and np.ndim(self.target_mean) == 0:
            checks.in_range("target_mean", self.target_mean)

    @property
    def needs_labels(self) -> bool:
        return False

    def poison(
        self, key: jax.Array, batch: Batch, *, positions: jax.Array, num_examples: jax.Array, num_classes: int
    ) -> Batch:
        del key
        if not hasattr(batch.y, "dtype"):
            raise checks.ArgumentError("label_flip", f"needs targets of one array, not {tree.described(batch.y, 'B')}")
        flipped = in_fraction(positions, num_examples, self.fraction)
        opposite = self.opposite(batch.y, num_classes)
        return batch._replace(y=jnp.where(tree.expand(flipped, batch.y), opposite, batch.y))

    def opposite(self, y: Shaped[Array, "batch ..."], num_classes: int) -> jax.Array:
        """The targets that the attacker puts in the place of ``y``."""
        if num_classes:
            return jnp.where(y < 0, y, num_classes - 1 - y)
        if y.ndim > 1 and jnp.issubdtype(y.dtype, jnp.integer):
            return 1 - y
        if self.target_mean is None:
            raise checks.ArgumentError("target_mean", "must be given for targets that are numbers", given=None)
        mirrored = 2 * jnp.asarray(self.target_mean) - y
        return mirrored if jnp.issubdtype(y.dtype, jnp.floating) else jnp.rint(mirrored).astype(y.dtype)

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int) -> tuple[jax.Array, jax.Array]:
        return x, num_classes - 1 - y
