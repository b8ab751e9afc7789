"""Multilayer perceptron."""

from collections.abc import Sequence

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_drag import checks
from fedjax_drag.models.initialisation import INITS, layer


class MLP(nn.Module):
    """Fully connected layers with ReLU between them.

    Attributes:
      num_classes: number of logits.
      hidden: widths of the hidden layers.
      initialisation: one of :data:`~fedjax_drag.models.initialisation.INITS`.
    """

    num_classes: int
    hidden: tuple[int, ...]
    initialisation: str = "flax"

    @nn.compact
    def __call__(self, x: Float[Array, " batch *input_shape"]) -> Float[Array, "batch classes"]:
        """Maps inputs, which are flattened, to logits."""
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, **layer(self.initialisation, x.shape[-1]))(x))
        return nn.Dense(self.num_classes, **layer(self.initialisation, x.shape[-1]))(x)


def mlp(num_classes: int, hidden: Sequence[int] = (500,), init: str = "flax") -> MLP:
    """Builds a multilayer perceptron.

    With the default hidden layer, 784 inputs and 10 classes it has 397,510 parameters.

    Args:
      num_classes: number of logits, at least 1.
      hidden: widths of the hidden layers, each at least 1; ``()`` is multinomial logistic regression.
      init: how its parameters begin: ``"flax"``, ``"torch"`` or ``"normal"``
        (:mod:`~fedjax_drag.models.initialisation`). ``"normal"`` with ``hidden=(32, 16, 8)`` is the perceptron of
        NIID-Bench (Li et al., 2022, ``FcNet``).

    Returns:
      A Flax module: inputs ``[B, ...]`` (flattened) to logits ``[B, num_classes]``.

    Raises:
      ValueError: if a count is not a positive integer, or ``init`` is not allowed.

    Examples:
      >>> model = mlp(num_classes=2, hidden=(32, 16))
    """
    checks.count("num_classes", num_classes, 1)
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise checks.ArgumentError("hidden", "must be a sequence of integers >= 1", given=hidden)
    for index, width in enumerate(hidden):
        checks.count(f"hidden[{index}]", width, 1)
    checks.one_of("init", init, INITS)
    return MLP(num_classes, tuple(hidden), init)
