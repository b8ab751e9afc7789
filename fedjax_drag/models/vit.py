"""Vision transformer."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import checks
from fedjax_drag.models.transformer import BLOCK_SHARDING, Size, size_of, through_blocks

SIZES = {
    "ti": Size(12, 3, 192),
    "s": Size(12, 6, 384),
    "b": Size(12, 12, 768),
    "l": Size(24, 16, 1024),
    "h": Size(32, 16, 1280),
}
"""Published ones (Dosovitskiy et al., 2021; Ti and S: Touvron et al., 2021)."""


class ViT(nn.Module):
    """Patches of an image and a class token through transformer blocks; the class token's state gives the logits.

    Attributes:
      num_classes: number of logits.
      size: of the blocks.
      patch: side of a patch in pixels.
      scan_layers: whether one loop goes over the blocks.
    """

    sharding_rules: ClassVar = BLOCK_SHARDING

    num_classes: int
    size: Size
    patch: int
    scan_layers: bool = False

    @nn.compact
    def __call__(self, images: Float[Array, "batch height width channels"]) -> Float[Array, "batch classes"]:
        """Maps images to logits."""
        if images.ndim != 4:
            raise ValueError(f"x.shape={images.shape}: ViT needs [B, H, W, C]")
        batch, height, width, channels = images.shape
        if height % self.patch or width % self.patch:
            raise ValueError(
                f"patch={self.patch}: must divide the height and the width of the images, {height}x{width}"
            )
        rows, columns = height // self.patch, width // self.patch
        patches = images.reshape(batch, rows, self.patch, columns, self.patch, channels).transpose(0, 1, 3, 2, 4, 5)
        x = nn.Dense(self.size.width, name="patches")(patches.reshape(batch, rows * columns, -1))
        token = self.param("class", nn.initializers.zeros, (1, 1, self.size.width))
        x = jnp.concatenate([jnp.broadcast_to(token, (batch, 1, self.size.width)).astype(x.dtype), x], 1)
        x = x + self.param("positions", nn.initializers.normal(0.02), x.shape[1:])
        block = {"is_causal": False, "epsilon": 1e-6, "kernel_init": nn.initializers.xavier_uniform()}
        x = through_blocks(x, self.size, self.scan_layers, **block)
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, name="head")(nn.LayerNorm(1e-6)(x[:, 0]))


def vit(
    num_classes: int,
    size: str | None = None,
    layers: int = 4,
    heads: int = 4,
    width: int = 64,
    patch: int | None = None,
    scan_layers: bool = False,
) -> ViT:
    """Builds a vision transformer, without dropout.

    Args:
      num_classes: number of logits, at least 1; ``"b"`` with 1,000 has 86,567,656 parameters for images of 224x224.
      size: ``"ti"``, ``"s"``, ``"b"``, ``"l"`` or ``"h"``: layers, heads and width of these; default the next three.
      layers: blocks, at least 1.
      heads: of each block's attention; must divide ``width``.
      width: of the states.
      patch: side of a patch in pixels, which divides the images' sides; default 16 with a ``size``, else 4.
      scan_layers: as of :func:`~fedjax_drag.models.transformer`.

    Returns:
      A Flax module: images ``[B, H, W, C]`` to logits ``[B, num_classes]``.

    Raises:
      ValueError: if a count is not a positive integer, ``heads`` does not divide ``width``, or ``size`` is not allowed.

    References:
      Dosovitskiy et al., An image is worth 16x16 words, ICLR 2021.

    Examples:
      >>> model = vit(num_classes=10, width=32)
    """
    shape = size_of(size, SIZES, Size(layers, heads, width))
    patch = patch if patch is not None else 4 if size is None else 16
    checks.count("num_classes", num_classes, 1)
    checks.count("patch", patch, 1)
    return ViT(num_classes, shape, patch, bool(scan_layers))
