"""Stride-1 convolution and 2x2 max pooling that stay fast inside ``lax.scan`` and under ``vmap``.

Two effects make the direct program slow. XLA:CPU runs a convolution inside a loop as a scalar loop unless it
is in NHWC/HWIO form, which automatic gradients are not; and ``vmap`` over kernels (one per client)
makes a grouped convolution, slow everywhere. Here the convolution and its two gradients are three bilinear
operations, and each is written in three forms:

* few output channels on narrow images: one matrix product of stacked image rows with a banded (Toeplitz)
  matrix, built from the kernel by a product with a constant; it batches without a rule of its own;
* else, one kernel: ``lax.conv_general_dilated`` with explicit transposes into NHWC/HWIO; ``vmap`` over the inputs
  alone only lengthens the batch;
* else, a kernel per row of ``vmap``: on a CPU those convolutions one after another, on other devices image
  patches by shifted slices and a batched matrix product.

Each operation's gradients are the other two, so reverse mode nests to any order; forward mode is not offered.

Milliseconds of CPU time (minimum of several; runs differ by 10 % and more) for 50 local SGD steps on 28x28x1 images,
on one of two CPU cores:

| model, batch | PyTorch | one model, ``scan`` | 10 clients x 5 steps: ``map`` | ``vmap`` |
| --- | --- | --- | --- | --- |
| ``cnn("emnist")``, 10 | 745 | 655 | 726 | 791 |
| the same, patches in every ``vmap`` | | | 785 | 1,284 |
| ``lenet``, 64 | 282 | 304 | 299 | 407 |
| the same, no banded form | 285 | 494 | 437 | 1,517 |
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from fedjax_drag import checks
from fedjax_drag.models.initialisation import Initializer

Pads = tuple[int, int]
"""Zeros before and after, the same along height and width."""


def conv2d(
    x: Float[Array, "n height width cin"], kernel: Float[Array, "k k cin cout"], padding: str = "SAME"
) -> Float[Array, "n out_h out_w cout"]:
    """Convolves images with a square kernel at stride 1 (cross-correlation, as usual in deep learning).

    Args:
      x: images.
      kernel: the same height and width k.
      padding: ``"SAME"`` (output as large as the input) or ``"VALID"`` (no padding).

    Returns:
      Images of the same height and width, or, with ``"VALID"``, of ``height - k + 1`` and ``width - k + 1``.

    Raises:
      ValueError: if the padding is unknown, the shapes do not fit or the image is smaller than the kernel.
    """
    checks.one_of("padding", padding, ("SAME", "VALID"))
    if x.ndim != 4:
        raise ValueError(f"x.shape={x.shape}: must be [N, H, W, Cin]")
    if kernel.ndim != 4 or kernel.shape[0] != kernel.shape[1] or kernel.shape[2] != x.shape[3]:
        raise ValueError(f"kernel.shape={kernel.shape}: must be [k, k, {x.shape[3]}, Cout]")
    k = kernel.shape[0]
    if padding == "SAME":
        return _output(((k - 1) // 2, k // 2), x, kernel)
    if min(x.shape[1:3]) < k:
        raise ValueError(f"x.shape={x.shape}: height and width must be at least the kernel's {k}")
    return _output((0, 0), x, kernel)


def max_pool(x: Float[Array, "n height width c"]) -> Float[Array, "n height//2 width//2 c"]:
    """Takes the maximum over 2x2 windows at stride 2; an odd last row or column is dropped.

    Among equal entries the gradient goes to the first of the window in row-major order, one valid subgradient.

    Raises:
      ValueError: if ``x`` does not have four axes, or its height or width is below 2.
    """
    if x.ndim != 4 or min(x.shape[1:3]) < 2:
        raise ValueError(f"x.shape={x.shape}: must be [N, H, W, C] with H, W >= 2 to be pooled")
    return _max_pool(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])


class Conv(nn.Module):
    """Convolution with a bias, optionally max-pooled; parameters as in ``flax.linen.Conv``.

    Pooling comes before the bias: the values are the same, since a constant commutes with the maximum, and
    adding the bias (and any monotone activation after the layer) touches a quarter of the entries.

    Attributes:
      features: output channels.
      kernel_size: height and width of the kernel.
      padding: ``"SAME"`` or ``"VALID"``.
      pool: whether to max-pool 2x2.
      kernel_init: initialiser of the kernel.
      bias_init: initialiser of the bias.
    """

    features: int
    kernel_size: int
    padding: str = "SAME"
    pool: bool = False
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()

    @nn.compact
    def __call__(self, x: Float[Array, "n height width cin"]) -> Float[Array, "n out_h out_w features"]:
        """Applies convolution, pooling and bias."""
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", self.bias_init, (self.features,))
        y = conv2d(x, kernel, self.padding)
        return (max_pool(y) if self.pool else y) + bias


# --- pooling


@jax.custom_vjp
def _max_pool(x: jax.Array) -> jax.Array:
    return _max_pool_forward(x)[0]


def _max_pool_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    n, h, w, c = x.shape
    window = x.reshape(n, h // 2, 2, w // 2, 2, c)
    a, b, d, e = (window[:, :, i, :, j] for i in (0, 1) for j in (0, 1))
    best = jnp.maximum(jnp.maximum(a, b), jnp.maximum(d, e))
    place = jnp.where(a == best, 0, jnp.where(b == best, 1, jnp.where(d == best, 2, 3)))
    return best, place.astype(jnp.int32)


def _max_pool_backward(place: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    # One elementwise pass over the large array, without a scatter; only the index of the maximum was kept.
    n, h, w, c = g.shape
    here = jnp.arange(4, dtype=jnp.int32).reshape(1, 1, 2, 1, 2, 1)
    dx = jnp.where(place[:, :, None, :, None] == here, g[:, :, None, :, None], 0)
    return (dx.reshape(n, 2 * h, 2 * w, c),)


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)


# --- one kernel: canonical convolutions


def _convolve(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), (pads, pads), dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _kernel_gradient_convolve(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    # Input channels and batch exchange their roles, so that the form stays canonical.
    return _convolve(x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3), pads).transpose(1, 2, 0, 3)


# --- a kernel per row of vmap: matrix products with image patches


def _patches(x: jax.Array, k: int, pads: Pads) -> jax.Array:
    """Image patches ``[N, Ho, Wo, k * k * C]``."""
    x = jnp.pad(x, ((0, 0), pads, pads, (0, 0)))
    ho, wo = x.shape[1] - k + 1, x.shape[2] - k + 1
    return jnp.concatenate([x[:, i : i + ho, j : j + wo] for i in range(k) for j in range(k)], -1)


def _patch_product(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    k, _, cin, cout = kernel.shape
    return _patches(x, k, pads) @ kernel.reshape(k * k * cin, cout)


def _kernel_gradient_patch_product(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    k = x.shape[1] + sum(pads) - g.shape[1] + 1
    patches = _patches(x, k, pads).reshape(-1, k * k * x.shape[3])
    return (patches.T @ g.reshape(-1, g.shape[3])).reshape(k, k, x.shape[3], g.shape[3])


# --- few output channels: matrix products with a banded matrix


def _band_is_worthwhile(width: int, k: int, features: int) -> bool:
    # Most of the band is zeros: width / k times the arithmetic, in exchange for `width` times wider products.
    # They pay while the features alone are too narrow to fill vector registers (threshold measured).
    return width * features <= 64 * k


def _diagonals(width: int, k: int, pads: Pads, dtype: Any) -> np.ndarray:
    """``[k, width, wo]``: one where input column ``w`` meets tap ``j`` of output column ``o``."""
    j, w, o = np.ogrid[:k, :width, : width + sum(pads) - k + 1]
    return (w == o + j - pads[0]).astype(dtype)


def _row_stacks(x: jax.Array, k: int, pads: Pads) -> jax.Array:
    """For each output row its ``k`` input rows, side by side: ``[N, Ho, k * W * C]``."""
    n, h, w, c = x.shape
    rows = jnp.pad(x.reshape(n, h, w * c), ((0, 0), pads, (0, 0)))
    ho = rows.shape[1] - k + 1
    return jnp.concatenate([rows[:, i : i + ho] for i in range(k)], -1)


def _band_product(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    n, _, w, c = x.shape
    k, _, _, features = kernel.shape
    diagonals = _diagonals(w, k, pads, kernel.dtype)
    band = jnp.einsum("jwo,ijcf->iwcof", diagonals, kernel).reshape(k * w * c, -1)
    y = _row_stacks(x, k, pads) @ band
    return y.reshape(n, y.shape[1], -1, features)


def _kernel_gradient_band_product(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    n, h, w, c = x.shape
    _, ho, wo, features = g.shape
    k = h + sum(pads) - ho + 1
    band = _row_stacks(x, k, pads).reshape(n * ho, -1).T @ g.reshape(n * ho, wo * features)
    return jnp.einsum("jwo,iwcof->ijcf", _diagonals(w, k, pads, g.dtype), band.reshape(k, w, c, wo, features))


# --- the three operations: which form, and each one's gradients


def _over_vmap(operation: custom_vmap, many: Callable, in_batched: list[bool], *args: jax.Array) -> jax.Array:
    """One kernel per row: on a CPU one after another (patches would leave the cache), elsewhere at once."""

    def looped(*args: jax.Array) -> jax.Array:
        def row(rows: list[jax.Array]) -> jax.Array:
            remaining = iter(rows)
            return operation(*(next(remaining) if b else a for a, b in zip(args, in_batched, strict=True)))

        return lax.map(row, [a for a, b in zip(args, in_batched, strict=True) if b])

    at_once = jax.vmap(many, in_axes=tuple(0 if b else None for b in in_batched))
    return lax.platform_dependent(*args, cpu=looped, default=at_once)


def _over_images(images: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """The convolution by the form that suits one kernel, or many under ``vmap``."""
    operation = custom_vmap(functools.partial(_convolve, pads=pads))

    @operation.def_vmap
    def rule(axis_size: int, in_batched: list[bool], images: jax.Array, kernel: jax.Array) -> tuple[jax.Array, bool]:
        if in_batched[1]:
            return _over_vmap(operation, functools.partial(_patch_product, pads=pads), in_batched, images, kernel), True
        folded = operation(images.reshape(-1, *images.shape[2:]), kernel)
        return folded.reshape(axis_size, -1, *folded.shape[1:]), True

    return operation(images, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _output(pads: Pads, x: jax.Array, kernel: jax.Array) -> jax.Array:
    k, _, _, features = kernel.shape
    return (_band_product if _band_is_worthwhile(x.shape[2], k, features) else _over_images)(x, kernel, pads)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _input_gradient(pads: Pads, g: jax.Array, kernel: jax.Array) -> jax.Array:
    k, _, _, features = kernel.shape
    width = g.shape[2] + k - 1 - sum(pads)
    form = _band_product if _band_is_worthwhile(width, k, features) else _over_images
    return form(g, kernel[::-1, ::-1].transpose(0, 1, 3, 2), (k - 1 - pads[0], k - 1 - pads[1]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _kernel_gradient(pads: Pads, x: jax.Array, g: jax.Array) -> jax.Array:
    k = x.shape[1] + sum(pads) - g.shape[1] + 1
    if _band_is_worthwhile(x.shape[2], k, g.shape[3]):
        return _kernel_gradient_band_product(x, g, pads)
    operation = custom_vmap(functools.partial(_kernel_gradient_convolve, pads=pads))

    @operation.def_vmap
    def rule(axis_size: int, in_batched: list[bool], x: jax.Array, g: jax.Array) -> tuple[jax.Array, bool]:
        many = functools.partial(_kernel_gradient_patch_product, pads=pads)
        return _over_vmap(operation, many, in_batched, x, g), True

    return operation(x, g)


def _keeping_arguments(operation: Callable) -> Callable:
    return lambda pads, a, b: (operation(pads, a, b), (a, b))


def _output_backward(pads: Pads, saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    return _input_gradient(pads, g, kernel), _kernel_gradient(pads, x, g)


def _input_gradient_backward(
    pads: Pads, saved: tuple[jax.Array, jax.Array], dx: jax.Array
) -> tuple[jax.Array, jax.Array]:
    g, kernel = saved
    return _output(pads, dx, kernel), _kernel_gradient(pads, dx, g)


def _kernel_gradient_backward(
    pads: Pads, saved: tuple[jax.Array, jax.Array], dk: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, g = saved
    return _input_gradient(pads, g, dk), _output(pads, x, dk)


_output.defvjp(_keeping_arguments(_output), _output_backward)
_input_gradient.defvjp(_keeping_arguments(_input_gradient), _input_gradient_backward)
_kernel_gradient.defvjp(_keeping_arguments(_kernel_gradient), _kernel_gradient_backward)
