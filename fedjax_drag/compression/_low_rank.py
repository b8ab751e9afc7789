"""PowerSGD: matrices of low rank, by one step of the power iteration for each message."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import checks, tree
from fedjax_drag.compression._compressor import Memory, Message, dense_bytes
from fedjax_drag.compression._error_feedback import FedBackCompressor


class low_rank(FedBackCompressor):
    """Sends every matrix of a message as the product of two thin ones.

    ::

        P = orthogonalise(M Q);   Q' = M^T P;   C(M) = P Q'^T

    ``Q`` is the ``Q'`` of the message before, so that the iterations of the rounds add up; where a column
    of ``Q'`` is zero, as after a message of zeros, that of ``Q`` stays. ``C(M)`` is ``M`` projected on the columns of
    ``P``: ``||C(M) - M|| <= ||M||``, with equality only where ``M^T M Q = 0``.

    Args:
      rank: columns of ``P`` and ``Q``, >= 1.
      error_feedback: whether what was lost is added to the next message, as in the paper.

    Returns:
      A :class:`Compressor`. An array of more than two axes is a matrix with the last of them as columns, the outputs of
      Flax's layers; one of a single axis, or whose two factors are no smaller, is sent as it is. The memory holds
      ``Q``.

    Raises:
      ValueError: if ``rank`` is not a positive integer.

    References:
      Vogels et al., PowerSGD: Practical low-rank gradient compression for distributed optimization, 2019, Algorithms 1
      and 2. Interpretation: the paper averages ``P`` and ``Q`` over the workers; here every client has factors of its
      own, as with one worker, so that any rule can aggregate what the server decompresses. ``Q`` starts from normal
      numbers that are the same for all clients. The orthogonalisation is a QR decomposition.
    """

    rank: int
    error_feedback: bool = True

    def check(self) -> None:
        checks.count("rank", self.rank, 1)

    def start(self, message: Message) -> Memory:
        leaves = enumerate(jax.tree.leaves(message))
        return tuple(_first(index, leaf, self.rank) for index, leaf in leaves if _is_factored(leaf, self.rank))

    def encode(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        del key
        leaves, structure = jax.tree.flatten(message)
        earlier, received, memory = list(memory), [], []
        for leaf in leaves:
            if _is_factored(leaf, self.rank):
                leaf, q = _projected(leaf, earlier.pop(0))
                memory.append(q)
            received.append(leaf)
        return structure.unflatten(received), tuple(memory)

    def num_bytes(self, message: Message) -> int:
        return sum(_leaf_bytes(leaf, self.rank) for leaf in jax.tree.leaves(message))


def _matrix_shape(leaf: Any) -> tuple[int, int]:
    return math.prod(leaf.shape[:-1]), leaf.shape[-1]


def _is_factored(leaf: Any, rank: int) -> bool:
    """Whether an array is a matrix whose factors are smaller than itself."""
    return len(leaf.shape) > 1 and rank * sum(_matrix_shape(leaf)) < leaf.size


def _leaf_bytes(leaf: Any, rank: int) -> int:
    if not _is_factored(leaf, rank):
        return dense_bytes(leaf)
    return rank * sum(_matrix_shape(leaf)) * jnp.dtype(leaf.dtype).itemsize


def _first(index: int, leaf: Any, rank: int) -> Float[Array, "columns rank"]:
    """``Q`` before the first message."""
    key = jax.random.fold_in(jax.random.key(0), index)
    return jax.random.normal(key, (leaf.shape[-1], rank), jnp.promote_types(leaf.dtype, jnp.float32))


def _projected(leaf: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What the receiver makes of a matrix, in the shape of ``leaf``, and ``Q`` for the next one."""
    matrix = tree.accurate(leaf).reshape(_matrix_shape(leaf))
    p, _ = jnp.linalg.qr(tree.product(matrix, q))
    factor = tree.product(matrix.T, p)
    received = tree.product(p, factor.T)
    # Only the span of Q counts: of length 1, it neither over- nor underflows in the next product. From a column of
    # zeros P would be the first unit vectors, which a matrix with rows of zeros there projects to zeros again.
    found = (factor != 0).any(axis=0)
    following = jnp.where(found, factor * tree.inverse(tree.norm(factor)), q)
    return received.reshape(leaf.shape).astype(leaf.dtype), following
