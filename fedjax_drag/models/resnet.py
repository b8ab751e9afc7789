"""ResNet-18 for small images, with group or batch normalisation."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import checks
from fedjax_drag.kernels.strides import every, merged, merged_kernel
from fedjax_drag.models.conv import conv2d
from fedjax_drag.models.initialisation import INITS, layer


class ResNet18(nn.Module):
    """Four stages of two basic blocks; the channels double and the image halves from stage to stage.

    Attributes:
      num_classes: number of logits.
      width: channels of the first stage.
      groups: number of groups of channels, each normalised separately; 0 for batch normalisation.
      initialisation: one of :data:`~fedjax_drag.models.initialisation.INITS`.
    """

    num_classes: int
    width: int
    groups: int
    initialisation: str = "flax"

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], train: bool = False
    ) -> Float[Array, "batch classes"]:
        """Maps images to logits; with ``train`` batch normalisation uses and collects the batch's statistics."""
        if x.ndim != 4:
            raise ValueError(f"x.shape={x.shape}: ResNet18 needs [B, H, W, C]")
        x = nn.relu(_norm(self.groups, train)()(_Conv(self.width, initialisation=self.initialisation)(x)))
        for stage in range(4):
            for block in range(2):
                halve = stage > 0 and block == 0
                x = BasicBlock(self.width * 2**stage, halve, self.groups, self.initialisation)(x, train)
        return nn.Dense(self.num_classes, **layer(self.initialisation, x.shape[-1]))(x.mean((1, 2)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al., Figure 2), each normalised.

    Attributes:
      features: output channels.
      halve: whether height and width are halved.
      groups: number of groups of channels, each normalised separately; 0 for batch normalisation.
      initialisation: one of :data:`~fedjax_drag.models.initialisation.INITS`.
    """

    features: int
    halve: bool
    groups: int
    initialisation: str = "flax"

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], train: bool = False
    ) -> Float[Array, "batch out_h out_w features"]:
        """Applies the block; with ``halve`` to half the height and width, rounded up."""
        norm = _norm(self.groups, train)
        y = nn.relu(norm()(_Conv(self.features, self.halve, self.initialisation)(x)))
        y = norm()(_Conv(self.features, initialisation=self.initialisation)(y))
        if self.halve:
            # A convolution of one pixel is a dense layer on the channels.
            start = layer(self.initialisation, x.shape[-1])
            x = norm()(nn.Dense(self.features, use_bias=False, **start)(every(x, 2)))
        return nn.relu(x + y)


def _norm(groups: int, train: bool) -> Callable[[], nn.Module]:
    """What makes a normalisation layer."""
    if groups:
        return functools.partial(nn.GroupNorm, groups)
    return functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)


class _Conv(nn.Module):
    """3x3 convolution without bias, at stride 1, or at 2, padded at the end, from the first 3x3 pixels on."""

    features: int
    halve: bool = False
    initialisation: str = "flax"

    @nn.compact
    def __call__(self, x: Float[Array, "batch height width channels"]) -> Float[Array, "batch out_h out_w features"]:
        shape = (3, 3, x.shape[-1], self.features)
        start = layer(self.initialisation, 9 * x.shape[-1]).get("kernel_init", nn.initializers.he_normal())
        kernel = self.param("kernel", start, shape)
        if not self.halve:
            return conv2d(x, kernel)
        # Each 2x2 square of pixels becomes one pixel with four times the channels; on these the operation is a 2x2
        # convolution at stride 1, for which conv2d has fast gradients and a fast form for many clients.
        even = jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)))
        return conv2d(merged(even, 2), merged_kernel(kernel, 2))


def resnet18(num_classes: int, width: int = 64, groups: int = 32, norm: str = "group", init: str = "flax") -> ResNet18:
    """Builds ResNet-18 for small images.

    The first convolution is 3x3 at stride 1 without pooling, as usual for 32x32 images. Group normalisation, the
    default, has no running statistics, whose average over heterogeneous clients fits none of them; of batch
    normalisation the option ``model_state`` of a run says what becomes of them. With ``width`` 64 it has 11,173,962
    parameters for 32x32x3 images and 10 classes, 11,220,132 for 100.

    Args:
      num_classes: number of logits, at least 1.
      width: channels of the first stage, with group normalisation a multiple of ``groups``; the others have 2, 4 and 8
        times as many.
      groups: number of groups of channels in a layer, each normalised separately; at least 1.
      norm: ``"group"``, or ``"batch"`` with momentum 0.9, for which ``groups`` has no meaning.
      init: how its parameters begin: ``"flax"``, here He's normal kernels in convolutions, ``"torch"`` or ``"normal"``
        (:mod:`~fedjax_drag.models.initialisation`). Torchvision's ResNets have another one than PyTorch's layers:
        normal kernels of convolutions with variance ``2 / fan_out``.

    Returns:
      A Flax module: images ``[B, H, W, C]`` to logits ``[B, num_classes]``.

    Raises:
      ValueError: if an argument is not allowed.

    References:
      He et al., Deep residual learning for image recognition, CVPR 2016; Wu and He, Group normalization, ECCV 2018.
    """
    checks.count("num_classes", num_classes, 1)
    checks.one_of("norm", norm, ("group", "batch"))
    checks.one_of("init", init, INITS)
    checks.count("groups", groups, 1)
    checks.count("width", width, 1)
    if norm == "group" and width % groups:
        raise checks.ArgumentError("width", f"must be a multiple of groups={groups}", given=width)
    return ResNet18(num_classes, width, groups if norm == "group" else 0, init)
