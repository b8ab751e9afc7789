"""Compressors of messages: each a pure transform of one client's message, with the bytes of its compressed form.

``fd.simulate(..., compression=fd.compression.top_k(0.01))`` sends what clients send through one of them, and
``downlink_compression`` what the server broadcasts. What is outside of a run can call them as well::

    compressor = top_k(0.01)
    memory = compressor.init(message)
    received, memory = compressor.compress(message, memory, key)
    sent = compressor.num_bytes(message)
"""

from fedjax_drag.compression._compressor import COMPRESSOR as COMPRESSOR
from fedjax_drag.compression._compressor import Compressor
from fedjax_drag.compression._error_feedback import error_feedback
from fedjax_drag.compression._low_rank import low_rank
from fedjax_drag.compression._qsgd import qsgd
from fedjax_drag.compression._random_k import random_k
from fedjax_drag.compression._sign import sign
from fedjax_drag.compression._top_k import top_k

__all__ = [  # noqa: RUF022 - the order of lists
    "top_k",
    "random_k",
    "qsgd",
    "sign",
    "low_rank",
    "Compressor",
    "error_feedback",
]
