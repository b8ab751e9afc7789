"""A convolution of few output channels, max-pooled: one matrix product for the four outputs of a pooling window.

What it gains is in :mod:`~fedjax_drag.models.conv` and in ``docs/accelerator.md``; ``scripts/benchmark.py kernels``
measures it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_drag.kernels.convolution import FORMS, Pads
from fedjax_drag.kernels.pooling import first_place, max_pool


def reference(x: jax.Array, kernel: jax.Array, bias: jax.Array, pads: Pads, relu: bool = False) -> jax.Array:
    """What :func:`pooled_window_product` computes."""
    best = max_pool(FORMS["grouped"].output(x, kernel, pads)) + bias
    return jax.nn.relu(best) if relu else best


def pooled_window_product(
    x: jax.Array, kernel: jax.Array, bias: jax.Array, pads: Pads, relu: bool = False
) -> jax.Array:
    """Convolution, 2x2 max pooling, bias and perhaps ReLU, with the batch as the last axis inside.

    The four outputs of a pooling window see ``2 m`` rows and columns of the image, where ``m = k // 2 + 1``. The
    kernel stands at four places in such a patch, hence one product ``[4 F, 4 m m C] @ [4 m m C, Hp * Wp * N]``.
    """
    n, h, w, c = x.shape
    k, _, _, features = kernel.shape
    m, extra = k // 2 + 1, 2 * (k // 2 + 1) - k
    hp, wp = ((size + sum(pads) - k + 1) // 2 for size in (h, w))
    rows, columns = 2 * (hp + m), 2 * (wp + m - 1)
    # Two rows more than are needed: a padding that XLA keeps, and so transposes the images once, not in every slice.
    border = [(0, 0, 0), (pads[0], rows - pads[0] - h, 0), (pads[0], columns - pads[0] - w, 0), (0, 0, 0)]
    images = lax.pad(x.transpose(3, 1, 2, 0), jnp.zeros((), x.dtype), border)
    # Rows and columns split by parity: the windows of stride 2 become slices of stride 1.
    split = images.reshape(c, rows // 2, 2, columns // 2, 2, n).transpose(2, 4, 0, 1, 3, 5)
    patches: Any = _shifted(m, split.reshape(4 * c, rows // 2, columns // 2, n))
    places = [((i, extra - i), (j, extra - j), (0, 0), (0, 0)) for i in (0, 1) for j in (0, 1)]
    four = jnp.stack([jnp.pad(kernel, place) for place in places])
    four = four.reshape(4, m, 2, m, 2, c, features).transpose(0, 6, 1, 3, 2, 4, 5)
    y = _product(four.reshape(4 * features, -1), patches.reshape(-1, hp * wp * n))
    best = _largest_of_four(y.reshape(4, features, -1)) + bias[:, None]
    best = best.reshape(features, hp, wp, n)
    # ReLU before the transpose, which then cancels out against that of the next layer.
    return (jax.nn.relu(best) if relu else best).transpose(3, 1, 2, 0)


@jax.custom_vjp
def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


def _product_backward(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = saved
    # The small matrix is transposed by itself: a product that XLA:CPU transposes on its way takes 1.5 times as long.
    return g @ b.T, lax.optimization_barrier(a.T) @ g


_product.defvjp(lambda a, b: (a @ b, (a, b)), _product_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _shifted(m: int, x: jax.Array) -> jax.Array:
    """The ``m * m`` shifted views of ``x`` [C, H, W, N], each ``[C, H - m, W - m + 1, N]``, one after another."""
    h, w = x.shape[1] - m, x.shape[2] - m + 1
    return jnp.concatenate([x[:, i : i + h, j : j + w] for i in range(m) for j in range(m)])


def _shifted_backward(m: int, saved: None, g: jax.Array) -> tuple[jax.Array]:
    # Sums in place, columns first: cheaper than padding every view, and XLA computes them once for all their uses.
    del saved
    _, h, w, n = g.shape
    g = g.reshape(m, m, -1, h, w, n)
    c = g.shape[2]
    wide = jnp.zeros((m, c, h, w + m - 1, n), g.dtype)
    for j in range(m):
        wide = lax.dynamic_update_slice(wide, wide[:, :, :, j : j + w] + g[:, j], (0, 0, 0, j, 0))
    dx = jnp.zeros((c, h + m, w + m - 1, n), g.dtype)
    for i in range(m):
        dx = lax.dynamic_update_slice(dx, dx[:, i : i + h] + wide[i], (0, i, 0, 0))
    return (dx,)


_shifted.defvjp(lambda m, x: (_shifted(m, x), None), _shifted_backward)


@jax.custom_vjp
def _largest_of_four(x: jax.Array) -> jax.Array:
    # A reduction and not three maxima: XLA does not repeat it in each of its uses. But from its own XLA:CPU drops NaN.
    return lax.reduce(x, jnp.asarray(-jnp.inf).astype(x.dtype), _larger, (0,))


def _larger(a: jax.Array, b: jax.Array) -> jax.Array:
    """The larger of two numbers, NaN if either is."""
    return jnp.where((a >= b) | jnp.isnan(a), a, b)


def _largest_of_four_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    best = _largest_of_four(x)
    return best, first_place(best, x)


def _largest_of_four_backward(place: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(place == jnp.arange(4, dtype=jnp.int32)[:, None, None], g, 0),)


_largest_of_four.defvjp(_largest_of_four_forward, _largest_of_four_backward)
