"""Convolutions at a stride, or with gaps in the kernel, as convolutions at stride 1 of other images.

At stride s every ``s x s`` square of pixels becomes one pixel with ``s * s`` times the channels, and the kernel is
filled up with zeros to a multiple of s. A kernel that is dilated by d meets every d-th pixel of a row: the ``d * d``
images of such pixels are convolved with the kernel without gaps. Both need no padding any more.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Borders = Sequence[tuple[int, int]]
"""Zeros before and after along height and width; negative ones cut off."""


def without_stride(
    x: Float[Array, "n height width cin"], kernel: Float[Array, "k k cin cout"], stride: int, pads: Borders
) -> tuple[Float[Array, "n rows columns channels"], Float[Array, "m m channels cout"]]:
    """Images and a kernel, ``m = ceil(k / stride)``, whose convolution is that of these at a stride.

    Args:
      x: images.
      kernel: the same height and width k.
      stride: along height and width.
      pads: padding of the images.
    """
    k = len(kernel)
    wholes = [stride * ((size + sum(pad) - k) // stride + -(-k // stride)) for size, pad in _along(x, pads)]
    return merged(_bordered(x, pads, wholes), stride), merged_kernel(kernel, stride)


def merged(x: Float[Array, "n height width c"], side: int) -> Float[Array, "n rows columns channels"]:
    """Squares of pixels, ``side`` of which fit each height and width, as pixels with more channels."""
    squares = _squares(x, side).transpose(0, 1, 3, 2, 4, 5)
    return squares.reshape(*squares.shape[:3], -1)


def merged_kernel(kernel: Float[Array, "k k cin cout"], side: int) -> Float[Array, "m m channels cout"]:
    """The kernel for :func:`merged` images."""
    k, _, channels, features = kernel.shape
    missing, m = -k % side, -(-k // side)
    taps = jnp.pad(kernel, ((0, missing), (0, missing), (0, 0), (0, 0))).reshape(m, side, m, side, channels, features)
    return taps.transpose(0, 2, 1, 3, 4, 5).reshape(m, m, side * side * channels, features)


def every(x: Float[Array, "n height width c"], stride: int) -> Float[Array, "n rows columns c"]:
    """``x[:, ::stride, ::stride]``, from squares of pixels.

    With strided slices before a dense layer, the compiler for GPUs of jaxlib 0.10.2 fails a check and ends the process.
    """
    return _squares(_bordered(x, ((0, 0), (0, 0)), [size + -size % stride for size in x.shape[1:3]]), stride)[
        :, :, 0, :, 0
    ]


def without_gaps(
    x: Float[Array, "n height width cin"], k: int, gap: int, pads: Borders
) -> Float[Array, "images rows columns cin"]:
    """The ``gap * gap * n`` images that a k x k kernel dilated by ``gap`` meets; :func:`together` undoes it."""
    wholes = [size + sum(pad) + -(size + sum(pad) - gap * (k - 1)) % gap for size, pad in _along(x, pads)]
    parts = _squares(_bordered(x, pads, wholes), gap).transpose(2, 4, 0, 1, 3, 5)
    return parts.reshape(-1, *parts.shape[3:])


def together(
    y: Float[Array, "images rows columns cout"], gap: int, height: int, width: int
) -> Float[Array, "n height width cout"]:
    """The output of a dilated kernel, from those of :func:`without_gaps`."""
    _, rows, columns, features = y.shape
    parts = y.reshape(gap, gap, -1, rows, columns, features).transpose(2, 3, 0, 4, 1, 5)
    return parts.reshape(-1, rows * gap, columns * gap, features)[:, :height, :width]


def _along(x: jax.Array, pads: Borders) -> list[tuple[int, tuple[int, int]]]:
    return list(zip(x.shape[1:3], pads, strict=True))


def _bordered(x: jax.Array, pads: Borders, wholes: Sequence[int]) -> jax.Array:
    """Images padded before, and after until they have a height and width."""
    borders = [(low, whole - size - low, 0) for (size, (low, _)), whole in zip(_along(x, pads), wholes, strict=True)]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *borders, (0, 0, 0)])


def _squares(x: jax.Array, side: int) -> jax.Array:
    n, h, w, c = x.shape
    return x.reshape(n, h // side, side, w // side, side, c)
