"""QSGD: coordinates rounded at random to a few levels."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import checks, tree
from fedjax_drag.compression._compressor import Memory, Message
from fedjax_drag.compression._error_feedback import FedBackCompressor
from fedjax_drag.types import Scalar

_NORM_BYTES = 4


class qsgd(FedBackCompressor):
    """Rounds every coordinate at random to one of its two nearest levels, of ``2 s + 1`` from ``-||x||`` to ``||x||``.

    ::

        C(x)_i = ||x||_2 sign(x_i) xi_i;   xi_i = (l + 1)/s with probability s |x_i| / ||x||_2 - l, else l/s;
        l = floor(s |x_i| / ||x||_2);   s = 2^(bits - 1) - 1

    Unbiased: ``E C(x) = x`` and ``E ||C(x) - x||^2 <= omega ||x||^2``, ``omega = min(d/s^2, sqrt(d)/s)``. With
    ``error_feedback`` it is divided by ``1 + omega``, and a contraction with ``delta = 1/(1 + omega)``.

    Args:
      bits: of each coordinate, its sign included, an integer from 2 (``s = 1``: -1, 0 or 1) to 16; may be traced.
      error_feedback: whether what was lost is added to the next message, instead of an unbiased one.

    Returns:
      A :class:`Compressor`. Each array of the message is quantised by itself, as one of the paper's buckets, and sent
      as its norm (4 bytes) and ``bits`` for each coordinate.

    Raises:
      ValueError: if ``bits`` is out of range.

    References:
      Alistarh et al., QSGD: Communication-efficient SGD via gradient quantization and encoding, 2017, Section 3.1
      and Lemma 3.1. Interpretations: levels have codes of one length, not the paper's Elias codes; the levels are
      counted so that code and sign fill ``bits``.
    """

    bits: Scalar
    error_feedback: bool = False

    def check(self) -> None:
        if getattr(self.bits, "shape", None) != () or checks.is_concrete(self.bits):  # else traced
            checks.count("bits", self.bits, 2, 16)

    def _rounded(self, x: Float[Array, "..."], key: PRNGKeyArray) -> Float[Array, "..."]:
        s = jnp.round(jnp.exp2(jnp.float32(self.bits) - 1)) - 1  # the power is not exact from 14 bits on
        norm = tree.norm(x)
        place = jnp.minimum(s * (jnp.abs(tree.accurate(x)) * tree.inverse(norm)), s)
        below = jnp.floor(place)
        level = below + (jax.random.uniform(key, x.shape, place.dtype) < place - below)
        shrunk = 1 + jnp.minimum(x.size / s**2, math.sqrt(x.size) / s) if self.error_feedback else 1.0
        return (jnp.sign(x) * (norm * (level / (s * shrunk)))).astype(x.dtype)

    def encode(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        leaves, structure = jax.tree.flatten(message)
        rounded = [self._rounded(leaf, jax.random.fold_in(key, index)) for index, leaf in enumerate(leaves)]
        return structure.unflatten(rounded), memory

    def num_bytes(self, message: Message) -> int:
        return sum(_NORM_BYTES + -(-leaf.size * int(self.bits) // 8) for leaf in jax.tree.leaves(message))
