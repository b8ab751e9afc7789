"""Top-k sparsification: the largest coordinates of a message."""

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.compression._compressor import Memory, Message
from fedjax_drag.compression._error_feedback import FedBackCompressor
from fedjax_drag.compression._selection import largest, num_kept, sparse_bytes
from fedjax_drag.ops.largest import magnitude
from fedjax_drag.types import Scalar

_INDEX_BYTES = 4


class top_k(FedBackCompressor):
    """Sends the ``k`` coordinates of a message that are largest in magnitude, with their places.

    ::

        C(x)_i = x_i where |x_i| is among the k largest, else 0;   k = max(1, round(fraction d))

    A contraction: ``||C(x) - x||^2 <= (1 - k/d) ||x||^2``.

    Args:
      fraction: of the coordinates of the whole message, in (0, 1]; may be traced.
      error_feedback: whether what was left out is added to the next message, as in the paper. Without it, coordinates
        that are never among the largest never move.

    Returns:
      A :class:`Compressor`. Its message has ``k`` values and ``k`` places of 4 bytes; where all values, zeros included,
      are no longer than that, they are counted instead. Of coordinates of equal magnitude the first are sent.

    Raises:
      ValueError: if ``fraction`` is out of range.

    References:
      Stich et al., Sparsified SGD with memory, 2018, Definitions 2.1 and 2.2, Algorithm 1; Aji and Heafield, Sparse
      communication for distributed gradient descent, 2017.
    """

    fraction: Scalar
    error_feedback: bool = True

    def check(self) -> None:
        checks.in_range("fraction", self.fraction, 0.0, 1.0, open_low=True)

    def encode(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        del key
        x, like_message = ravel_pytree(message)
        ranks = magnitude(x, jnp.dtype(f"int{8 * jnp.result_type(jnp.float32, x).itemsize}"))
        sent = largest(ranks, num_kept(self.fraction, x.size))
        return like_message(jnp.where(sent, x, 0)), memory

    def num_bytes(self, message: Message) -> int:
        return sparse_bytes(message, self.fraction, around=0, per_entry=_INDEX_BYTES)
