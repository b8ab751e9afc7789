"""What a compressor is: what a receiver makes of a compressed message, and how many bytes that has."""
# Fields of FunctionCompressor stand in the place of methods.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from collections.abc import Callable
from typing import Any

from jaxtyping import PRNGKeyArray

from fedjax_drag.kinds import Kind
from fedjax_drag.types import Part
from fedjax_drag.types._part import undefined

Message = Any
"""A pytree of floating point arrays, such as a delta."""

Memory = Any
"""What a sender keeps from one message to the next, a pytree of arrays; ``()`` for nothing."""


class Compressor(Part):
    """A lossy code for messages, as what comes out of it at the receiver.

    A compressor is a subclass; ``Compressor(init, compress, num_bytes)`` makes one of functions.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(FunctionCompressor if cls is Compressor else cls)

    def init(self, message: Message) -> Memory:
        """The memory before the first message, by default none.

        Args:
          message: arrays or shapes; only shapes and dtypes count.
        """
        del message
        return ()

    def compress(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        """Compresses a message and decompresses it again; pure and jittable.

        Args:
          message: what is to be sent.
          memory: from ``init`` or the message before.
          key: of the compressor's random draws.

        Returns:
          What the receiver makes of the compressed message, like ``message``, and the memory.
        """
        raise undefined(self, "compress")

    def num_bytes(self, message: Message) -> int:
        """Bytes of the compressed message.

        Args:
          message: arrays or shapes; only shapes and dtypes count.
        """
        raise undefined(self, "num_bytes")

    @property
    def contraction(self) -> "Compressor | None":
        """The compressor inside, where this one feeds its errors back; None where they are not.

        One whose error is shorter than the message, ``E ||C(x) - x||^2 <= (1 - delta) ||x||^2`` with ``delta > 0``.
        """
        return None


class FunctionCompressor(Compressor):
    """A compressor of functions, which are compared by identity; ``Compressor(...)`` makes one.

    Attributes:
      init: ``(message) -> memory``, as of :class:`Compressor`.
      compress: ``(message, memory, key) -> (received, memory)``, as of :class:`Compressor`.
      num_bytes: ``(message) -> bytes``, as of :class:`Compressor`.
    """

    _made_of = ("compress",)

    init: Callable[[Message], Memory]
    compress: Callable[[Message, Memory, PRNGKeyArray], tuple[Message, Memory]]
    num_bytes: Callable[[Message], int]


COMPRESSOR = Kind(Compressor, "a compressor, such as fd.compression.top_k(0.01)", ("compression",))


def dense_bytes(leaf: Any) -> int:
    """Bytes of an array, or of one of such a shape, as it is."""
    return leaf.size * leaf.dtype.itemsize
