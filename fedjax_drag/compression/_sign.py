"""Signs with a scale: one bit for each coordinate."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.compression._compressor import Memory, Message
from fedjax_drag.compression._error_feedback import FedBackCompressor

_SCALE_BYTES = 4


class sign(FedBackCompressor):
    """Sends the sign of every coordinate and the mean of the magnitudes.

    ::

        C(x) = (||x||_1 / d) sign(x)

    A contraction: ``||C(x) - x||^2 = (1 - ||x||_1^2 / (d ||x||_2^2)) ||x||^2``, at most ``(1 - 1/d) ||x||^2``.

    Args:
      error_feedback: whether what was lost is added to the next message, as in the paper; without it, signs need not
        converge even for a convex loss.

    Returns:
      A :class:`Compressor`. Each array of the message has a scale of its own (4 bytes) and a bit for each coordinate,
      the sign of 0 being +.

    References:
      Karimireddy et al., Error feedback fixes SignSGD and other gradient compression schemes, ICML 2019 (EF-SignSGD),
      layer by layer as in its experiments.
    """

    error_feedback: bool = True

    def _signs(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        scale = jnp.abs(tree.accurate(x)).mean()
        return jnp.where(x >= 0, scale, -scale).astype(x.dtype)

    def encode(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        del key
        return jax.tree.map(self._signs, message), memory

    def num_bytes(self, message: Message) -> int:
        return sum(_SCALE_BYTES + -(-leaf.size // 8) for leaf in jax.tree.leaves(message))
