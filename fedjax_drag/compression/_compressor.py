"""What a compressor is: what a receiver makes of a compressed message, and how many bytes that has."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from fedjax_drag.kinds import Kind
from fedjax_drag.naming import name_of

Message = Any
"""A pytree of floating point arrays, such as a delta."""

Memory = Any
"""What a sender keeps from one message to the next, a pytree of arrays; ``()`` for nothing."""


@runtime_checkable
class MemoryFn(Protocol):
    """``init`` of a compressor."""

    def __call__(self, message: Message, /) -> Memory:
        """The memory before the first message.

        Args:
          message: arrays or shapes; only shapes and dtypes count.
        """
        ...


@runtime_checkable
class CompressFn(Protocol):
    """``compress`` of a compressor."""

    def __call__(self, message: Message, memory: Memory, key: PRNGKeyArray, /) -> tuple[Message, Memory]:
        """Compresses a message and decompresses it again; pure and jittable.

        Args:
          message: what is to be sent.
          memory: from ``init`` or the message before.
          key: of the compressor's random draws.

        Returns:
          What the receiver makes of the compressed message, like ``message``, and the memory.
        """
        ...


@runtime_checkable
class NumBytesFn(Protocol):
    """``num_bytes`` of a compressor."""

    def __call__(self, message: Message, /) -> int:
        """Bytes of the compressed message.

        Args:
          message: arrays or shapes; only shapes and dtypes count.
        """
        ...


class Compressor(NamedTuple):
    """A lossy code for messages, as what comes out of it at the receiver.

    Attributes:
      init: ``(message) -> memory``; see :class:`MemoryFn`.
      compress: ``(message, memory, key) -> (decompressed, memory)``; see :class:`CompressFn`.
      num_bytes: ``(message) -> int``; see :class:`NumBytesFn`.
      contraction: the compressor inside, where this one feeds its errors back: one whose error is shorter than the
        message, ``E ||C(x) - x||^2 <= (1 - delta) ||x||^2`` with ``delta > 0``. None where errors are not fed back.
    """

    init: MemoryFn
    compress: CompressFn
    num_bytes: NumBytesFn
    contraction: "Compressor | None" = None

    def __repr__(self) -> str:
        return f"Compressor({self.name})"

    @property
    def name(self) -> str:
        """The name of the function that made it, such as ``top_k``."""
        return name_of(self.compress)


COMPRESSOR = Kind(Compressor, "a compressor, such as fd.compression.top_k(0.01)", ("compression",))


def nothing(message: Message) -> tuple[()]:
    """``init`` of a compressor without a memory."""
    del message
    return ()


def dense_bytes(leaf: Any) -> int:
    """Bytes of an array, or of one of such a shape, as it is."""
    return leaf.size * jnp.dtype(leaf.dtype).itemsize


def keys_for(key: PRNGKeyArray, message: Message) -> Any:
    """A key for each leaf of a message, like the message."""
    leaves, structure = jax.tree.flatten(message)
    return structure.unflatten([jax.random.fold_in(key, index) for index in range(len(leaves))])
