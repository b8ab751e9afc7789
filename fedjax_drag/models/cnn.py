"""Plain convolutional networks: convolution, 2x2 max pooling and ReLU, repeated; then two dense layers."""

import flax.linen as nn
import jax

from fedjax_drag import checks
from fedjax_drag.models.conv import Conv

# variant: (kernel size, channels of the convolutions, width of the hidden dense layer)
_VARIANTS = {
    "emnist": (5, (32, 64), 512),
    "cifar10": (5, (32, 64), 512),
    "cifar100": (3, (32, 64, 64), 512),
    "small": (3, (8, 16), 32),
}


class CNN(nn.Module):
    """Padded convolutions, each pooled 2x2, a hidden dense layer and the logits.

    Attributes:
      num_classes: number of logits.
      kernel_size: height and width of every kernel.
      channels: output channels of the convolutions.
      dense: width of the hidden dense layer.
    """

    num_classes: int
    kernel_size: int
    channels: tuple[int, ...]
    dense: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images ``[B, H, W, C]`` to logits ``[B, num_classes]``."""
        smallest = 2 ** len(self.channels)
        if x.ndim != 4 or min(x.shape[1:3]) < smallest:
            raise ValueError(f"x.shape={x.shape}: this CNN needs [B, H, W, C] with H, W >= {smallest}")
        for features in self.channels:
            x = nn.relu(Conv(features, self.kernel_size, pool=True)(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(self.dense)(x))
        return nn.Dense(self.num_classes)(x)


def cnn(num_classes: int, variant: str = "emnist") -> CNN:
    """Builds a convolutional network.

    | variant | convolutions (SAME), each with ReLU and 2x2 max pooling | dense | parameters |
    | --- | --- | --- | --- |
    | ``emnist`` | 5x5: 32, 64 | 512 | 1,663,370 for 28x28x1 and 10 classes |
    | ``cifar10`` | 5x5: 32, 64 | 512 | 2,156,490 for 32x32x3 and 10 classes |
    | ``cifar100`` | 3x3: 32, 64, 64 | 512 | 632,420 for 32x32x3 and 100 classes |
    | ``small`` | 3x3: 8, 16 | 32 | 3,658 for 8x8x1 and 10 classes |

    Args:
      num_classes: number of logits, at least 1.
      variant: a row of the table.

    Returns:
      A Flax module: images ``[B, H, W, C]`` to logits ``[B, num_classes]``. Height and width must be at
      least 4, for ``cifar100`` 8.

    Raises:
      ValueError: if an argument is not allowed.
    """
    checks.count("num_classes", num_classes, 1)
    checks.one_of("variant", variant, _VARIANTS)
    kernel_size, channels, dense = _VARIANTS[variant]
    return CNN(num_classes, kernel_size, channels, dense)
