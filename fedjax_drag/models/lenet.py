"""LeNet-5 with ReLU and max pooling."""

from fedjax_drag import checks
from fedjax_drag.models.cnn import CNN
from fedjax_drag.models.initialisation import INITS


def lenet(num_classes: int, init: str = "flax") -> CNN:
    """Builds LeNet-5 with ReLU and max pooling.

    Two unpadded 5x5 convolutions (6 and 16 channels), each pooled, and dense layers 120, 84, ``num_classes``. With 10
    classes it has 44,426 parameters for 28x28x1 images and 62,006 for 32x32x3.

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
    return CNN(num_classes, 5, (6, 16), (120, 84), padding="VALID", initialisation=init)
