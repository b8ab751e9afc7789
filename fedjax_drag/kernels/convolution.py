"""The forms in which a stride-1 convolution and its two gradients are computed, and which one a platform takes.

A form is three bilinear functions: the output, and the gradients with respect to the images and to the kernel. All
forms give the same numbers up to rounding; what differs is how they run where every client has a kernel of its own
(``vmap`` over kernels), and inside compiled loops.

* ``looped``: a convolution with explicit transposes into NHWC/HWIO, the only order that XLA:CPU does not run as a
  scalar loop inside a ``scan`` (``scripts/benchmark.py kernels``); the gradient of the kernel of wide images is a sum
  of products of each image's patches. ``vmap`` over the images alone lengthens the batch;
  over kernels, one convolution after another, whose arrays stay in a core's cache.
* ``banded``: one matrix product of stacked image rows with a banded (Toeplitz) matrix, built from the kernel by a
  product with a constant. Most of the band is zeros.
* ``grouped``: XLA's convolution and its own gradients, the reference of the others; ``vmap`` over kernels makes one
  convolution with a group of channels for each client, which moves each image and each kernel once.
* ``patches``: image patches by shifted slices and a batched matrix product. A patch repeats each pixel ``k * k`` times.
  The gradient of the images is that of the patches, one product, added up where patches overlap. A kernel that all
  rows share is convolved by XLA.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

Pads = tuple[int, int]
"""Zeros before and after, the same along height and width."""

Bilinear = Callable[[jax.Array, jax.Array, Pads], jax.Array]
"""Of two arrays and the padding of the convolution."""


class ConvForm(NamedTuple):
    """A way to compute a convolution.

    Attributes:
      output: ``(x, kernel, pads) -> y``.
      input_gradient: ``(g, kernel, pads) -> dx``.
      kernel_gradient: ``(x, g, pads) -> dk``.
    """

    output: Bilinear
    input_gradient: Bilinear
    kernel_gradient: Bilinear


def form_on_cpu(width: int, kernel: tuple[int, ...]) -> str:
    """The form of a CPU, for images of ``width`` and a kernel of shape ``[k, k, Cin, Cout]``."""
    k, _, _, features = kernel
    # Most of the band is zeros: width / k times the arithmetic, in exchange for `width` times wider products.
    # They pay while the features alone are too narrow to fill vector registers (threshold measured).
    return "banded" if width * features <= 64 * k else "looped"


# --- an ordinary convolution


def _convolve(
    x: jax.Array, kernel: jax.Array, pads: Pads, axes: tuple[str, str, str] = ("NHWC", "HWIO", "NHWC")
) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), (pads, pads), dimension_numbers=axes)


def _input_gradient(g: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    k = kernel.shape[0]
    return _convolve(g, kernel[::-1, ::-1], (k - 1 - pads[0], k - 1 - pads[1]), ("NHWC", "HWOI", "NHWC"))


def _kernel_gradient(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    # Input channels and batch exchange their roles.
    return _convolve(x, g, pads, ("CHWN", "IHWO", "HWNC"))


# --- one kernel after another


def _turned(output: Bilinear, g: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """The gradient with respect to the images, as an output."""
    k = kernel.shape[0]
    return output(g, kernel[::-1, ::-1].transpose(0, 1, 3, 2), (k - 1 - pads[0], k - 1 - pads[1]))


def _canonical_kernel_gradient(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    return _convolve(x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3), pads).transpose(1, 2, 0, 3)


def _repeated(function: Bilinear, folds: bool, at_once: Callable[..., jax.Array] | None = None) -> Bilinear:
    """A bilinear function with rules of its own under ``vmap``.

    Args:
      function: of one row.
      folds: whether rows that share a kernel are one batch of images.
      at_once: for rows with kernels of their own, all at once; default ``function`` for one row after another.
    """

    def of_rows(x: jax.Array, other: jax.Array, pads: Pads) -> jax.Array:
        operation = custom_vmap(lambda x, other: function(x, other, pads))

        @operation.def_vmap
        def rule(axis_size: int, in_batched: list[bool], x: jax.Array, other: jax.Array) -> tuple[jax.Array, bool]:
            if folds and not in_batched[1]:
                y = operation(x.reshape(-1, *x.shape[2:]), other)
                return y.reshape(axis_size, -1, *y.shape[1:]), True
            if at_once is not None:
                axes = [0 if batched else None for batched in in_batched]
                return jax.vmap(functools.partial(at_once, pads=pads), axes)(x, other), True
            arguments = (x, other)

            def row(rows: list[jax.Array]) -> jax.Array:
                remaining = iter(rows)
                return operation(*(next(remaining) if b else a for a, b in zip(arguments, in_batched, strict=True)))

            return lax.map(row, [a for a, b in zip(arguments, in_batched, strict=True) if b]), True

        return operation(x, other)

    return of_rows


# --- matrix products with a banded matrix


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


def _band_kernel_gradient(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    n, h, w, c = x.shape
    _, ho, wo, features = g.shape
    k = h + sum(pads) - ho + 1
    band = _row_stacks(x, k, pads).reshape(n * ho, -1).T @ g.reshape(n * ho, wo * features)
    return jnp.einsum("jwo,iwcof->ijcf", _diagonals(w, k, pads, g.dtype), band.reshape(k, w, c, wo, features))


# --- matrix products with image patches


def _patches(x: jax.Array, k: int, pads: Pads) -> jax.Array:
    """Image patches ``[N, Ho, Wo, k * k * C]``."""
    x = jnp.pad(x, ((0, 0), pads, pads, (0, 0)))
    ho, wo = x.shape[1] - k + 1, x.shape[2] - k + 1
    return jnp.concatenate([x[:, i : i + ho, j : j + wo] for i in range(k) for j in range(k)], -1)


def _patch_product(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    k, _, cin, cout = kernel.shape
    return _patches(x, k, pads) @ kernel.reshape(k * k * cin, cout)


def _patch_input_gradient(g: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    n, ho, wo, features = g.shape
    k, _, channels, _ = kernel.shape
    patches = (g.reshape(-1, features) @ kernel.reshape(-1, features).T).reshape(n, ho, wo, k, k, channels)
    # Each place of a patch lies elsewhere in the image: negative paddings cut off what the border has added.
    total: Any = 0
    for i in range(k):
        for j in range(k):
            rows, columns = (i - pads[0], k - 1 - i - pads[1], 0), (j - pads[0], k - 1 - j - pads[1], 0)
            border = [(0, 0, 0), rows, columns, (0, 0, 0)]
            total = total + lax.pad(patches[:, :, :, i, j], jnp.zeros((), g.dtype), border)
    return total


def _patch_kernel_gradient(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    k = x.shape[1] + sum(pads) - g.shape[1] + 1
    patches = _patches(x, k, pads).reshape(-1, k * k * x.shape[3])
    return (patches.T @ g.reshape(-1, g.shape[3])).reshape(k, k, x.shape[3], g.shape[3])


def _kernel_gradient_by_image(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    """As the sum over images, whose patches stay in a core's cache."""
    k = x.shape[1] + sum(pads) - g.shape[1] + 1

    def add(total: jax.Array, image: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        one, slope = image
        return total + _patches(one[None], k, pads).reshape(-1, total.shape[0]).T @ slope.reshape(-1, g.shape[3]), None

    start = jnp.zeros((k * k * x.shape[3], g.shape[3]), g.dtype)
    return lax.scan(add, start, (x, g))[0].reshape(k, k, x.shape[3], g.shape[3])


def _looped_kernel_gradient(x: jax.Array, g: jax.Array, pads: Pads) -> jax.Array:
    # A convolution with a kernel as large as the image is slow on a CPU where that is large (thresholds measured).
    wide = g.shape[1] * g.shape[2] >= 400 and x.shape[3] >= 16
    return (_kernel_gradient_by_image if wide else _canonical_kernel_gradient)(x, g, pads)


_one_after_another = _repeated(_convolve, folds=True)

FORMS = {
    "looped": ConvForm(
        _one_after_another,
        functools.partial(_turned, _one_after_another),
        _repeated(_looped_kernel_gradient, folds=False),
    ),
    "banded": ConvForm(_band_product, functools.partial(_turned, _band_product), _band_kernel_gradient),
    "grouped": ConvForm(_convolve, _input_gradient, _kernel_gradient),
    "patches": ConvForm(
        _repeated(_convolve, folds=True, at_once=_patch_product),
        _repeated(_input_gradient, folds=True, at_once=_patch_input_gradient),
        _repeated(_kernel_gradient, folds=False, at_once=_patch_kernel_gradient),
    ),
}
"""By name."""
