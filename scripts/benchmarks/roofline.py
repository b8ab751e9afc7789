"""The shortest time that a device could take: by the speed of one large matrix product, and by its maker's figures."""

import math
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_drag.accelerators.counts import work_of
from fedjax_drag.accelerators.targets import GPUS
from fedjax_drag.models.conv import Conv

_SIDES = {"cpu": 2048}
_SIDE = 8192  # of an accelerator, which a smaller product does not fill
_REPEATS = 7


def peak_flops() -> float:
    """FLOPs per second of a float32 matrix product on the first device, the best of several.

    The precision is JAX's setting: on NVIDIA's GPUs TF32, unless ``jax_default_matmul_precision`` says otherwise.
    """
    side = _SIDES.get(jax.default_backend(), _SIDE)
    a = jax.random.normal(jax.random.key(0), (side, side))
    product = jax.jit(lambda a: a @ a).lower(a).compile()
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(product(a))
        seconds.append(time.perf_counter() - started)
    return 2 * side**3 / min(seconds)


def step_flops(model: nn.Module, input_shape: tuple[int, ...], batch_size: int) -> int:
    """FLOPs of the dense and convolutional layers in a gradient step, whatever algorithm computes them.

    A layer's output, its gradient with respect to the input and its gradient with respect to the kernel cost the
    same; the first layer needs no gradient with respect to the input.

    Args:
      model: a Flax module whose arithmetic is in layers :class:`flax.linen.Dense` and
        :class:`~fedjax_drag.models.conv.Conv`.
      input_shape: shape of one example.
      batch_size: B.
    """
    forward: list[int] = []

    def count(layer: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        if context.method_name == "__call__" and isinstance(context.module, nn.Dense | Conv):
            forward.append(_layer_flops(context.module, args[0].shape))
        return layer(*args, **kwargs)

    with nn.intercept_methods(count):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((batch_size, *input_shape)))
    return 3 * sum(forward) - forward[0]


def _layer_flops(layer: nn.Dense | Conv, shape: tuple[int, ...]) -> int:
    """FLOPs of a layer's output for an input of this shape."""
    if isinstance(layer, nn.Dense):
        return 2 * math.prod(shape) * layer.features
    border = layer.kernel_size - 1 if layer.padding == "VALID" else 0
    pixels = shape[0] * (shape[1] - border) * (shape[2] - border)
    return 2 * pixels * layer.kernel_size**2 * shape[3] * layer.features


def planned_ms(program: Any) -> float | None:
    """The plan's milliseconds of a compiled program on the present device; a loop of unknown length counts once.

    None where the plan does not know the device, or cannot read what its compiler has written.
    """
    kind = jax.devices()[0].device_kind
    chip = next((chip for chip in GPUS.values() if chip.title.startswith(kind)), None)
    try:
        return 1e3 * work_of(program.as_text()).seconds(chip) if chip else None
    except Exception:  # what was measured is not lost for it
        return None
