"""Error feedback: what a message lacked is added to the next one."""

from typing import Any, NamedTuple

from jaxtyping import PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.compression._compressor import COMPRESSOR, Compressor, Memory, Message
from fedjax_drag.naming import named


class Feedback(NamedTuple):
    """Memory of :func:`error_feedback`.

    Attributes:
      error: what the receiver lacks of the messages so far, like a message.
      inner: memory of the compressor inside.
    """

    error: Message
    inner: Memory


def error_feedback(compressor: Compressor) -> Compressor:
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
      2019 (EF-SGD). Reading: the messages are deltas, whose step sizes are in them already.
    """
    COMPRESSOR.check("compressor", compressor)

    def init(message: Message) -> Feedback:
        return Feedback(tree.zeros_like(message), compressor.init(message))

    def compress(message: Message, memory: Feedback, key: PRNGKeyArray) -> tuple[Message, Feedback]:
        whole = tree.add(message, memory.error)
        received, inner = compressor.compress(whole, memory.inner, key)
        return received, Feedback(tree.subtract(whole, received), inner)

    return named(compressor.name, Compressor(init, compress, compressor.num_bytes, compressor))


def fed_back(compressor: Compressor, feedback: bool) -> Any:
    """The compressor, or its :func:`error_feedback` if that is wanted."""
    return error_feedback(compressor) if feedback else compressor
