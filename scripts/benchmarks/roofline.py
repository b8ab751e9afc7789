"""How fast local steps could be: their multiplications and additions at the speed of one large matrix product."""

import math
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_drag.models.conv import Conv

_SIDE = 2048
_REPEATS = 7


def peak_flops() -> float:
    """FLOPs a second of a float32 matrix product on the first device, the best of several."""
    a = jax.random.normal(jax.random.key(0), (_SIDE, _SIDE))
    product = jax.jit(lambda a: a @ a).lower(a).compile()
    taken = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(product(a))
        taken.append(time.perf_counter() - started)
    return 2 * _SIDE**3 / min(taken)


def step_flops(model: nn.Module, input_shape: tuple[int, ...], batch_size: int) -> int:
    """FLOPs of the dense and convolutional layers in a gradient step, however they are computed.

    A layer's output, its gradient by the input and its gradient by the kernel cost the same; the first layer
    needs no gradient by the input.

    Args:
      model: a Flax module whose arithmetic is in layers :class:`flax.linen.Dense` and
        :class:`~fedjax_drag.models.conv.Conv`.
      input_shape: of one example.
      batch_size: B.
    """
    forward: list[int] = []

    def count(layer, args, kwargs, context):
        if context.method_name == "__call__" and isinstance(context.module, nn.Dense | Conv):
            forward.append(_layer_flops(context.module, args[0].shape))
        return layer(*args, **kwargs)

    with nn.intercept_methods(count):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((batch_size, *input_shape)))
    return 3 * sum(forward) - forward[0]


def _layer_flops(layer: Any, shape: tuple[int, ...]) -> int:
    if isinstance(layer, nn.Dense):
        return 2 * math.prod(shape) * layer.features
    lost = layer.kernel_size - 1 if layer.padding == "VALID" else 0
    pixels = shape[0] * (shape[1] - lost) * (shape[2] - lost)
    return 2 * pixels * layer.kernel_size**2 * shape[3] * layer.features
