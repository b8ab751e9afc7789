"""provisional"""
import functools

import flax.linen as nn
import jax
from jax import lax


def conv(x, kernel, padding):
    return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def canonical_conv(x, kernel, pad):
    return conv(x, kernel, [(pad, pad)] * 2)


def _fwd(x, kernel, pad):
    return canonical_conv(x, kernel, pad), (x, kernel)


def _bwd(pad, saved, g):
    x, kernel = saved
    back = kernel.shape[0] - 1 - pad
    dx = conv(g, kernel[::-1, ::-1].transpose(0, 1, 3, 2), [(back, back)] * 2)
    dk = conv(x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3), [(pad, pad)] * 2)
    return dx, dk.transpose(1, 2, 0, 3)


canonical_conv.defvjp(_fwd, _bwd)


class Conv(nn.Module):
    features: int
    size: int
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (self.size, self.size, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return canonical_conv(x, kernel, self.size // 2 if self.padding == "SAME" else 0) + bias


def max_pool(x):
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
