"""Error feedback: what a message lacked is added to the next one."""

from typing import NamedTuple

from jaxtyping import PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.compression._compressor import COMPRESSOR, Compressor, Memory, Message
from fedjax_drag.types._part import undefined


class Feedback(NamedTuple):
    """Memory of :func:`error_feedback`.

    Attributes:
      error: what the receiver lacks of the messages so far, like a message.
      inner: memory of the compressor inside.
    """

    error: Message
    inner: Memory


class error_feedback(Compressor):
    """Compresses each message together with what the receiver lacks of the earlier ones.

    ::

        p_t = x_t + e_t;   the receiver gets C(p_t);   e_{t+1} = p_t - C(p_t)

    The sum of what was received and the error is the sum of what was to be sent: nothing is lost, it is late.

    Args:
      compressor: a contraction ``C``, ``E ||C(x) - x||^2 <= (1 - delta) ||x||^2`` with ``0 < delta <= 1``. The error of
        one that is not, such as an unbiased quantiser of few levels, may grow without bound.

    Returns:
      A :class:`Compressor` with a memory of the size of a message.

    Raises:
      ValueError: if ``compressor`` is none.

    References:
      Seide et al., 1-bit stochastic gradient descent and its application to data-parallel distributed training of
      speech DNNs, 2014; Karimireddy et al., Error feedback fixes SignSGD and other gradient compression schemes, ICML
      2019 (EF-SGD). Interpretation: the messages are deltas, whose step sizes are in them already.
    """

    compressor: Compressor

    def check(self) -> None:
        COMPRESSOR.check("compressor", self.compressor)

    def init(self, message: Message) -> Feedback:
        return Feedback(tree.zeros_like(message), self.compressor.init(message))

    def compress(self, message: Message, memory: Feedback, key: PRNGKeyArray) -> tuple[Message, Feedback]:
        whole = tree.add(message, memory.error)
        received, inner = self.compressor.compress(whole, memory.inner, key)
        return received, Feedback(tree.subtract(whole, received), inner)

    def num_bytes(self, message: Message) -> int:
        return self.compressor.num_bytes(message)

    @property
    def contraction(self) -> Compressor:
        return self.compressor


class FedBackCompressor(Compressor):
    """A compressor with a field ``error_feedback``, whether it is that of a contraction: :meth:`encode`."""

    error_feedback = False  # a field of every subclass

    def start(self, message: Message) -> Memory:
        """The memory of :meth:`encode` before the first message."""
        del message
        return ()

    def encode(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        """What the receiver makes of a message, and the memory; without error feedback, that is all."""
        raise undefined(self, "encode")

    def init(self, message: Message) -> Memory:
        return self._whole.init(message) if self.error_feedback else self.start(message)

    def compress(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        return self._whole.compress(message, memory, key) if self.error_feedback else self.encode(message, memory, key)

    @property
    def contraction(self) -> Compressor | None:
        return _Encoder(self) if self.error_feedback else None

    @property
    def _whole(self) -> Compressor:
        return error_feedback(_Encoder(self))


class _Encoder(Compressor):
    """A compressor without its error feedback."""

    compressor: FedBackCompressor

    def init(self, message: Message) -> Memory:
        return self.compressor.start(message)

    def compress(self, message: Message, memory: Memory, key: PRNGKeyArray) -> tuple[Message, Memory]:
        return self.compressor.encode(message, memory, key)

    def num_bytes(self, message: Message) -> int:
        return self.compressor.num_bytes(message)
