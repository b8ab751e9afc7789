"""Random changes of the training inputs that keep their labels valid, drawn inside the compiled program.

An augmentation is ``(key, x [B, *input_shape]) -> x`` on a model's inputs, an array or a pytree of arrays, after
normalisation; every batch of a local pass has a key of its own.
"""

# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedjax_drag import checks
from fedjax_drag.types._part import CallablePart

__all__ = ["crop_flip"]

Augmentation = Callable[[jax.Array, Any], Any]


class crop_flip(CallablePart):
    """Shifts every image by up to ``padding`` pixels in both directions and mirrors half of them left to right.

    The shift crops an image of the original size out of one that is padded around.

    Args:
      padding: P >= 0; shifts are uniform in [-P, P].
      flip: whether to mirror.
      border: what it is padded with: ``"zeros"``, after normalisation the mean colour; or ``"reflect"``, the pixels
        inside, mirrored about those of the border.

    Raises:
      ValueError: if an argument is out of range; while the run is built, if the inputs are not images.

    References:
      He et al., Deep residual learning for image recognition, CVPR 2016, Section 4.2. Mirrored in the
      codes of NIID-Bench (Li et al., 2022) and of NVFlare.
    """

    padding: int = 4
    flip: bool = True
    border: str = "zeros"

    def check(self) -> None:
        checks.count("padding", self.padding)
        checks.one_of("border", self.border, ("zeros", "reflect"))

    def __call__(self, key: Key[Array, ""], x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        """``(key, images [B, H, W, C]) -> images``, of floating type."""
        if getattr(x, "ndim", None) != 4:
            shape = jax.tree.map(jnp.shape, x)
            raise ValueError(f"crop_flip needs images [B, H, W, C], not inputs of shape {shape}")
        shift_key, flip_key = jax.random.split(key)
        corners = jax.random.randint(shift_key, (x.shape[0], 2), 0, 2 * self.padding + 1)
        around = (self.padding, self.padding)
        mode = "reflect" if self.border == "reflect" else "constant"
        padded = jnp.pad(x, ((0, 0), around, around, (0, 0)), mode)
        x = jax.vmap(lambda image, c: jax.lax.dynamic_slice(image, (c[0], c[1], 0), x.shape[1:]))(padded, corners)
        if not self.flip:
            return x
        mirrored = jax.random.bernoulli(flip_key, shape=(x.shape[0], 1, 1, 1))
        return jnp.where(mirrored, x[:, :, ::-1], x)
