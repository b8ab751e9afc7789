"""Plain convolutional networks: convolutions with ReLU and 2x2 max pooling; then dense layers."""

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from fedjax_drag import checks
from fedjax_drag.models.conv import Conv
from fedjax_drag.models.initialisation import INITS, layer


class CNN(nn.Module):
    """Convolutions, pooled 2x2, hidden dense layers and the logits.

    Attributes:
      num_classes: number of logits.
      kernel_size: height and width of every kernel.
      channels: output channels of the convolutions.
      dense: widths of the hidden dense layers.
      padding: of every convolution, ``"SAME"`` or ``"VALID"``.
      first_pooled: number of convolutions before the first that is pooled; all later ones are pooled too.
      last_relu: whether the last convolution has a ReLU.
      drops_channels: whether dropout after the convolutions takes whole channels of an image.
      dropout: rates after the convolutions and after the hidden dense layers.
      initialisation: one of :data:`~fedjax_drag.models.initialisation.INITS`.
      fixed_dropout: whether the same activations are dropped in every step.
    """

    num_classes: int
    kernel_size: int
    channels: tuple[int, ...]
    dense: tuple[int, ...]
    padding: str = "SAME"
    first_pooled: int = 0
    last_relu: bool = True
    drops_channels: bool = False
    dropout: tuple[float, float] = (0.0, 0.0)
    initialisation: str = "flax"
    fixed_dropout: bool = False

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], train: bool = False
    ) -> Float[Array, "batch classes"]:
        """Maps images to logits; with ``train`` some activations are dropped."""
        smallest = self._smallest()
        if x.ndim != 4 or min(x.shape[1:3]) < smallest:
            raise ValueError(f"x.shape={x.shape}: this CNN needs [B, H, W, C] with H, W >= {smallest}")
        for index, features in enumerate(self.channels):
            start = layer(self.initialisation, self.kernel_size**2 * x.shape[-1])
            pool = index >= self.first_pooled
            relu = self.last_relu or index + 1 < len(self.channels)
            x = Conv(features, self.kernel_size, self.padding, pool, relu=relu, **start)(x)
        x = self._dropped(x, 0, train)
        x = x.reshape(x.shape[0], -1)
        for width in self.dense:
            x = nn.relu(nn.Dense(width, **layer(self.initialisation, x.shape[-1]))(x))
        x = self._dropped(x, 1, train)
        return nn.Dense(self.num_classes, **layer(self.initialisation, x.shape[-1]))(x)

    @nn.nowrap
    def _dropped(self, x: jax.Array, place: int, train: bool) -> jax.Array:
        """With the dropout after the convolutions (0) or after the hidden layers (1)."""
        shared = (1, 2) if self.drops_channels and place == 0 else ()
        layer = nn.Dropout(self.dropout[place], broadcast_dims=shared, deterministic=not train)
        if not (self.fixed_dropout and train):
            return layer(x)
        self.make_rng("dropout")  # unused: by its streams a model says that it trains with dropout
        return layer(x, rng=jax.random.key(place))

    def _smallest(self) -> int:
        """The smallest height and width that leave a pixel for the dense layers."""
        size, lost = 1, self.kernel_size - 1 if self.padding == "VALID" else 0
        for index in reversed(range(len(self.channels))):
            size = size * (2 if index >= self.first_pooled else 1) + lost
        return size


_VARIANTS = {
    "emnist": partial(CNN, kernel_size=5, channels=(32, 64), dense=(512,)),
    "cifar10": partial(CNN, kernel_size=5, channels=(32, 64), dense=(512,)),
    "cifar100": partial(CNN, kernel_size=3, channels=(32, 64, 64), dense=(512,)),
    "pooled_once": partial(CNN, kernel_size=3, channels=(32, 64), dense=(128,), padding="VALID", first_pooled=1),
    "bucketing": partial(
        CNN,
        kernel_size=3,
        channels=(32, 64),
        dense=(128,),
        padding="VALID",
        first_pooled=1,
        last_relu=False,
        drops_channels=True,
    ),
    "mnist": partial(CNN, kernel_size=5, channels=(20, 50), dense=(500,), padding="VALID"),
    "pfllib": partial(CNN, kernel_size=5, channels=(32, 64), dense=(512,), padding="VALID"),
    "small": partial(CNN, kernel_size=3, channels=(8, 16), dense=(32,)),
}


def cnn(
    num_classes: int,
    variant: str = "emnist",
    dropout: Sequence[float] = (0.0, 0.0),
    init: str = "flax",
    fixed_dropout: bool = False,
) -> CNN:
    """Builds a convolutional network.

    | variant | convolutions with ReLU, padded (SAME) and each pooled 2x2 | dense | parameters |
    | --- | --- | --- | --- |
    | ``emnist`` | 5x5: 32, 64 | 512 | 1,663,370 for 28x28x1 and 10 classes |
    | ``cifar10`` | 5x5: 32, 64 | 512 | 2,156,490 for 32x32x3 and 10 classes |
    | ``cifar100`` | 3x3: 32, 64, 64 | 512 | 632,420 for 32x32x3 and 100 classes |
    | ``pooled_once`` | 3x3: 32, 64, not padded, only the second pooled | 128 | 1,626,442 for 32x32x3 and 10 classes |
    | ``bucketing`` | as ``pooled_once``, the second without ReLU | 128 | 1,199,882 for 28x28x1 and 10 classes |
    | ``mnist`` | 5x5: 20, 50, not padded | 500 | 431,080 for 28x28x1 and 10 classes |
    | ``pfllib`` | 5x5: 32, 64, not padded | 512 | 582,026 for 28x28x1 and 10 classes |
    | ``small`` | 3x3: 8, 16 | 32 | 3,658 for 8x8x1 and 10 classes |

    Args:
      num_classes: number of logits, at least 1.
      variant: a row of the table.
      dropout: rates in [0, 0.99] after the convolutions and after the hidden dense layer. ``pooled_once`` with
        ``(0.25, 0.5)`` is the CIFAR-10 network of the benchmarks of pfl-research, ``mnist`` without dropout the
        ``cnn_mnist`` of ByzFL, ``pfllib`` the ``FedAvgCNN`` of PFLlib, ``bucketing`` with ``(0.25, 0.5)``, which drops
        whole channels, the network of Karimireddy, He and Jaggi (Byzantine-robust learning on heterogeneous datasets
        via bucketing, 2022).
      init: how its parameters begin: ``"flax"``, ``"torch"`` or ``"normal"``
        (:mod:`~fedjax_drag.models.initialisation`).
      fixed_dropout: whether dropout takes the same activations at the same places of a batch in every step, for every
        client and seed. The code of bucketing does, which restores the state of its random numbers.

    Returns:
      A Flax module: images ``[B, H, W, C]`` to logits ``[B, num_classes]``. Height and width must be at
      least 4, for ``pooled_once`` and ``bucketing`` 6, for ``cifar100`` 8, for ``mnist`` and ``pfllib`` 16.

    Raises:
      ValueError: if an argument is not allowed.
    """
    checks.count("num_classes", num_classes, 1)
    checks.one_of("variant", variant, _VARIANTS)
    if not isinstance(dropout, Sequence) or len(dropout) != 2:
        raise checks.ArgumentError("dropout", "must be two rates, such as (0.25, 0.5)", given=dropout)
    for index, rate in enumerate(dropout):
        checks.in_range(f"dropout[{index}]", rate, 0.0, 0.99)
    checks.one_of("init", init, INITS)
    rates = (dropout[0], dropout[1])
    return _VARIANTS[variant](num_classes, dropout=rates, initialisation=init, fixed_dropout=fixed_dropout)
