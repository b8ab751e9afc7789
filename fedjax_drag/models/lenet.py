"""LeNet-5 with ReLU and max pooling."""

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_drag import checks
from fedjax_drag.models.conv import Conv
from fedjax_drag.models.initialisation import INITS, layer

_SMALLEST = 16
"""Two unpadded 5x5 convolutions, each pooled, reduce 16 pixels to one."""


class LeNet(nn.Module):
    """Two unpadded 5x5 convolutions (6 and 16 channels), pooled, and dense layers 120, 84, ``num_classes``.

    Attributes:
      num_classes: number of logits.
      initialisation: one of :data:`~fedjax_drag.models.initialisation.INITS`.
    """

    num_classes: int
    initialisation: str = "flax"

    @nn.compact
    def __call__(self, x: Float[Array, "batch height width channels"]) -> Float[Array, "batch classes"]:
        """Maps images to logits."""
        if x.ndim != 4 or min(x.shape[1:3]) < _SMALLEST:
            raise ValueError(f"x.shape={x.shape}: LeNet needs [B, H, W, C] with H, W >= {_SMALLEST}")
        for features in (6, 16):
            start = layer(self.initialisation, 25 * x.shape[-1])
            x = Conv(features, 5, padding="VALID", pool=True, relu=True, **start)(x)
        x = x.reshape(x.shape[0], -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width, **layer(self.initialisation, x.shape[-1]))(x))
        return nn.Dense(self.num_classes, **layer(self.initialisation, x.shape[-1]))(x)


def lenet(num_classes: int, init: str = "flax") -> LeNet:
    """Builds LeNet-5 with ReLU and max pooling.

    With 10 classes it has 44,426 parameters for 28x28x1 images and 62,006 for 32x32x3.

    Args:
      num_classes: number of logits, at least 1.
      init: how its parameters begin: ``"flax"``, ``"torch"`` or ``"normal"``
        (:mod:`~fedjax_drag.models.initialisation`).

    Returns:
      A Flax module: images ``[B, H, W, C]``, height and width at least 16, to logits ``[B, num_classes]``.

    Raises:
      ValueError: if ``num_classes`` is not a positive integer, or ``init`` is not allowed.

    References:
      LeCun et al., Gradient-based learning applied to document recognition, 1998.
    """
    checks.count("num_classes", num_classes, 1)
    checks.one_of("init", init, INITS)
    return LeNet(num_classes, init)
