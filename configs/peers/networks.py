"""The networks of fednova.yaml and nvflare.yaml: blocks of 3x3 convolutions with ReLU, and three dense layers."""

from collections.abc import Sequence

import flax.linen as nn
import jax

_HE = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class Blocks(nn.Module):
    """Blocks of padded 3x3 convolutions, each block pooled 2x2, and two hidden dense layers of 512.

    Attributes:
      num_classes: number of logits.
      blocks: output channels of the convolutions of each block.
      dropout: rates before the hidden layers, between them and after them.
      block_dropout: rate after the second block, of whole channels.
      kernel_init: of the convolutions.
    """

    num_classes: int
    blocks: Sequence[Sequence[int]]
    dropout: tuple[float, float, float]
    block_dropout: float = 0.0
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Maps images ``[B, H, W, C]`` to logits."""
        for place, channels in enumerate(self.blocks):
            for features in channels:
                x = nn.relu(nn.Conv(features, (3, 3), kernel_init=self.kernel_init)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
            if place == 1 and self.block_dropout:
                x = nn.Dropout(self.block_dropout, broadcast_dims=(1, 2), deterministic=not train)(x)
        x = x.reshape(x.shape[0], -1)
        for rate in self.dropout[:2]:
            x = nn.relu(nn.Dense(512)(nn.Dropout(rate, deterministic=not train)(x)))
        return nn.Dense(self.num_classes)(nn.Dropout(self.dropout[2], deterministic=not train)(x))


def vgg11(num_classes: int) -> Blocks:
    """VGG-11 without normalisation, of Flower's baseline fednova: 9,750,922 parameters for 32x32x3 and 10 classes."""
    return Blocks(num_classes, ((64,), (128,), (256, 256), (512, 512), (512, 512)), (0.5, 0.5, 0.0), kernel_init=_HE)


def moderate_cnn(num_classes: int) -> Blocks:
    """``ModerateCNN`` of NVFlare, which has it from FedMA."""
    return Blocks(num_classes, ((32, 64), (128, 128), (256, 256)), (0.1, 0.0, 0.1), block_dropout=0.05)
