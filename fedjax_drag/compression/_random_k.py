"""Random sparsification: some coordinates of a message, drawn at random."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.compression._compressor import Memory, Message
from fedjax_drag.compression._error_feedback import FedBackCompressor
from fedjax_drag.compression._selection import largest, num_kept, sparse_bytes
from fedjax_drag.types import Scalar

_SEED_BYTES = 8  # a random key, from which the receiver draws the same places


class random_k(FedBackCompressor):
    """Sends ``k`` coordinates of a message, drawn anew for each message, and the seed of the draw.

    ::

        C(x)_i = (d/k) x_i where i is drawn, else 0;   k = max(1, round(fraction d))

    Unbiased: ``E C(x) = x`` and ``E ||C(x) - x||^2 = (d/k - 1) ||x||^2``. With ``error_feedback`` without the factor
    ``d/k``, and a contraction: ``E ||C(x) - x||^2 = (1 - k/d) ||x||^2``.

    Args:
      fraction: of the coordinates of the whole message, in (0, 1]; may be traced.
      error_feedback: whether what was left out is added to the next message, instead of the factor ``d/k``.

    Returns:
      A :class:`Compressor`. Its message has ``k`` values and a seed of 8 bytes; where all values, zeros included, are
      no longer than that, they are counted instead.

    Raises:
      ValueError: if ``fraction`` is out of range.

    References:
      Konecny et al., Federated learning: strategies for improving communication efficiency, 2016 (random mask,
      subsampling); with memory Stich et al., Sparsified SGD with memory, 2018, Definition 2.2 and Algorithm 1.
    """

    fraction: Scalar
    error_feedback: bool = False

    def check(self) -> None:
        checks.in_range("fraction", self.fraction, 0.0, 1.0, open_low=True)

    def encode(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        x, like_message = ravel_pytree(message)
        k = num_kept(self.fraction, x.size)
        lots = (jax.random.bits(key, (x.size,), jnp.uint32) >> 1).astype(jnp.int32)
        scale = 1.0 if self.error_feedback else x.size / jnp.float32(k)
        return like_message((jnp.where(largest(lots, k), x, 0) * scale).astype(x.dtype)), memory

    def num_bytes(self, message: Message) -> int:
        return sparse_bytes(message, self.fraction, around=_SEED_BYTES, per_entry=0)
