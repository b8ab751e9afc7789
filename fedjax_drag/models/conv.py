"""Stride-1 convolution and 2x2 max pooling that stay fast inside ``lax.scan`` and under ``vmap``.

The convolution and its two gradients are three bilinear operations, each computed in the form that suits the kernel and
the platform for which the program is compiled (:mod:`~fedjax_drag.kernels.convolution`). Each operation's gradients are
the other two, so reverse mode nests to any order; forward mode is not offered. Where :class:`Conv` pools, one product
gives the four outputs of each pooling window instead: on a GPU, and on a CPU for narrow images of few output channels.

Milliseconds of CPU time (minimum of several; runs differ by 10 % and more) for 50 local SGD steps on 28x28x1 images,
on one of two CPU cores:

| model, batch | PyTorch | one model, ``scan`` | 10 clients x 5 steps: ``map`` | ``vmap`` |
| --- | --- | --- | --- | --- |
| ``cnn("emnist")``, 10 | 745 | 655 | 726 | 791 |
| the same, patches in every ``vmap`` | | | 785 | 1,284 |
| ``lenet``, 64 | 282 | 304 | 299 | 407 |
| the same, no banded form | 285 | 494 | 437 | 1,517 |

The rows of ``lenet`` are of the banded form. On a busy core, runs taking turns, the product of pooling windows takes
0.48 of its time for ``lenet`` at batch 64 (one model, ``scan``), 0.44 on 32x32x3 images, and 0.63 for
``cnn("small")`` on 8x8x1 images at batch 10. ReLU inside it and a gradient that transposes the small matrix by itself
take 0.81 of what was left for ``lenet``.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax import lax
from jaxtyping import Array, Float

from fedjax_drag import checks
from fedjax_drag.kernels.convolution import FORMS, Pads, form_on_cpu
from fedjax_drag.kernels.pooled_convolution import pooled_window_product
from fedjax_drag.kernels.pooling import max_pool
from fedjax_drag.models.initialisation import Initializer

POOLED = "pooled"
"""The form of :mod:`~fedjax_drag.kernels.pooled_convolution`, of a layer that pools."""


def conv2d(
    x: Float[Array, "n height width cin"],
    kernel: Float[Array, "k k cin cout"],
    padding: str = "SAME",
    form: str = "auto",
) -> Float[Array, "n out_h out_w cout"]:
    """Convolves images with a square kernel at stride 1 (cross-correlation, as usual in deep learning).

    Args:
      x: images.
      kernel: the same height and width k.
      padding: ``"SAME"`` (output as large as the input) or ``"VALID"`` (no padding).
      form: one of :data:`~fedjax_drag.kernels.convolution.FORMS`, or ``"auto"`` for that of the platform.

    Returns:
      Images of the same height and width, or, with ``"VALID"``, of ``height - k + 1`` and ``width - k + 1``.

    Raises:
      ValueError: if the padding or the form is unknown, the shapes do not fit or the image is smaller than the kernel.
    """
    checks.one_of("form", form, ("auto", *FORMS))
    return _operation(_chosen(x, kernel, _pads(x, kernel, padding), form), "output", x, kernel)


def convolution(
    x: Float[Array, "n height width cin"],
    kernel: Float[Array, "k k cin cout"],
    bias: Float[Array, " cout"],
    pads: Pads,
    pool: bool = False,
    relu: bool = False,
    form: str = "auto",
) -> Float[Array, "n out_h out_w cout"]:
    """What :class:`Conv` computes: a convolution, and perhaps 2x2 max pooling, then a bias, and perhaps ReLU.

    Args:
      x: images.
      kernel: the same height and width k.
      bias: added to each channel.
      pads: zeros before and after each row and column, each less than k.
      pool: whether to max-pool.
      relu: whether to apply ReLU.
      form: see :class:`Conv`.
    """
    setting = _chosen(x, kernel, pads, "auto" if form == POOLED else form)

    def in_steps(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        y: Any = _operation(setting, "output", x, kernel)
        y = (max_pool(y) if pool else y) + bias
        return nn.relu(y) if relu else y

    smallest = min(x.shape[1:3]) + sum(pads) - kernel.shape[0] + 1
    if not pool or form not in ("auto", POOLED) or smallest < 2:
        return in_steps(x, kernel, bias)
    at_once = functools.partial(pooled_window_product, pads=pads, relu=relu)
    if form == POOLED:
        return at_once(x, kernel, bias)
    on_cpu = at_once if setting.on_cpu == "banded" else in_steps
    return lax.platform_dependent(x, kernel, bias, cpu=on_cpu, cuda=at_once, rocm=at_once, default=in_steps)


class Conv(nn.Module):
    """Convolution with a bias, optionally max-pooled and with ReLU; parameters as in ``flax.linen.Conv``.

    Pooling comes before the bias: the values are the same, since a constant commutes with the maximum, and
    adding the bias (and any monotone activation after the layer) touches a quarter of the entries.

    Attributes:
      features: output channels.
      kernel_size: height and width of the kernel.
      padding: ``"SAME"`` or ``"VALID"``.
      pool: whether to max-pool 2x2.
      relu: whether to apply ReLU at the end.
      kernel_init: initialiser of the kernel.
      bias_init: initialiser of the bias.
      form: as of :func:`conv2d`; or ``"pooled"``, that of :mod:`~fedjax_drag.kernels.pooled_convolution`, which a
        layer that pools takes by itself where it is the faster one.
    """

    features: int
    kernel_size: int
    padding: str = "SAME"
    pool: bool = False
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    form: str = "auto"
    relu: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "n height width cin"]) -> Float[Array, "n out_h out_w features"]:
        """Applies convolution, pooling, bias and ReLU."""
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", self.bias_init, (self.features,))
        checks.one_of("form", self.form, ("auto", *FORMS, POOLED))
        pads = _pads(x, kernel, self.padding)
        return convolution(x, kernel, bias, pads, self.pool, self.relu, self.form)


class _Setting(NamedTuple):
    """What is fixed in an operation: the forms on a CPU, on a GPU and on other platforms, and the padding."""

    on_cpu: str
    on_gpu: str
    elsewhere: str
    pads: Pads


def _pads(x: jax.Array, kernel: jax.Array, padding: str) -> Pads:
    """Zeros before and after; raises ValueError for what does not fit."""
    checks.one_of("padding", padding, ("SAME", "VALID"))
    if x.ndim != 4:
        raise ValueError(f"x.shape={x.shape}: must be [N, H, W, Cin]")
    if kernel.ndim != 4 or kernel.shape[0] != kernel.shape[1] or kernel.shape[2] != x.shape[3]:
        raise ValueError(f"kernel.shape={kernel.shape}: must be [k, k, {x.shape[3]}, Cout]")
    k = kernel.shape[0]
    if padding == "VALID" and min(x.shape[1:3]) < k:
        raise ValueError(f"x.shape={x.shape}: height and width must be at least the kernel's {k}")
    return ((k - 1) // 2, k // 2) if padding == "SAME" else (0, 0)


def _chosen(x: jax.Array, kernel: jax.Array, pads: Pads, form: str) -> _Setting:
    if form != "auto":
        return _Setting(form, form, form, pads)
    return _Setting(form_on_cpu(x.shape[2], kernel.shape), "patches", "grouped", pads)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _operation(setting: _Setting, part: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """``part``, a field of :class:`~fedjax_drag.kernels.convolution.ConvForm`, in the form that the platform takes."""

    def by(form: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
        return functools.partial(getattr(FORMS[form], part), pads=setting.pads)

    on_gpu = by(setting.on_gpu)
    forms = {"cpu": by(setting.on_cpu), "cuda": on_gpu, "rocm": on_gpu, "default": by(setting.elsewhere)}
    return lax.platform_dependent(a, b, **forms)


def _gradients(
    setting: _Setting, part: str, saved: tuple[jax.Array, jax.Array], slope: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Those of one operation are the other two."""
    a, b = saved
    of = functools.partial(_operation, setting)
    if part == "output":  # of the images and the kernel
        return of("input_gradient", slope, b), of("kernel_gradient", a, slope)
    if part == "input_gradient":  # of the output's slope and the kernel
        return of("output", slope, b), of("kernel_gradient", slope, a)
    return of("input_gradient", b, slope), of("output", a, slope)  # of the images and the output's slope


_operation.defvjp(lambda setting, part, a, b: (_operation(setting, part, a, b), (a, b)), _gradients)
