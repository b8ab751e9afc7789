"""The way of a round's messages through compressors: from a client to the server, and from the server to all clients.

Delta and ``aux`` are messages of their own, since their units differ. Integers and single numbers, such as a number of
local steps, are sent as they are.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.compression._compressor import Compressor, Memory, Message, dense_bytes
from fedjax_drag.types import Params, Uplink


class Received(NamedTuple):
    """What clients have of the server's broadcasts.

    Attributes:
      start: where their local passes start, like the parameters; the compressed differences add up to it.
      memory: of the server's compressor.
    """

    start: Params
    memory: Memory


def uplink_memory(compressor: Compressor, uplink: Uplink) -> Uplink:
    """What a client keeps of its messages before the first, a memory for each half.

    Args:
      compressor: of the clients.
      uplink: of one client, arrays or shapes.
    """
    return Uplink(*(compressor.init(_arrays(half)[0]) for half in uplink))


def send(compressor: Compressor, uplink: Uplink, memory: Uplink, key: PRNGKeyArray) -> tuple[Uplink, Uplink]:
    """One client's message as the server decompresses it, and what the client keeps.

    A message that no rule can compute with (:func:`fedjax_drag.tree.usable_rows`) is neither compressed nor remembered,
    so that the server rejects it and later messages have nothing of it.

    Args:
      compressor: of the clients.
      uplink: of one client.
      memory: from :func:`uplink_memory`, or the message before.
      key: of this message.
    """
    usable = tree.usable_rows(jax.tree.map(lambda x: x[None], uplink))[0]
    keys = jax.random.split(key, len(uplink))
    halves = [_through(compressor, *one) for one in zip(uplink, memory, keys, strict=True)]
    received, after = (Uplink(*parts) for parts in zip(*halves, strict=True))
    return tree.where(usable, received, uplink), tree.where(usable, after, memory)


def send_once(compressor: Compressor, uplink: Uplink, key: PRNGKeyArray) -> Uplink:
    """A message as it is decompressed that has nothing of earlier ones: of a sender without a memory."""
    inner = compressor.contraction or compressor
    return send(inner, uplink, uplink_memory(inner, uplink), key)[0]


def uplink_bytes(compressor: Compressor, uplink: Uplink) -> int:
    """Bytes of a client's compressed message, arrays or shapes."""
    return sum(_num_bytes(compressor, half) for half in uplink)


def first_received(compressor: Compressor, params: Params) -> Received:
    """What clients have before the first round: the initial parameters."""
    return Received(params, _contraction(compressor).init(_arrays(params)[0]))


def broadcast(compressor: Compressor, received: Received, start: Params, key: PRNGKeyArray) -> Received:
    """What clients have after the server has sent them the compressed difference to what they had.

    The difference holds all that earlier broadcasts lacked: this is error feedback.

    Args:
      compressor: of the server; its contraction is applied.
      received: before.
      start: where local passes are to start.
      key: of this broadcast.
    """
    difference = tree.subtract(start, received.start)
    sent, memory = _through(_contraction(compressor), difference, received.memory, key)
    return Received(tree.move(received.start, sent), memory)


def broadcast_bytes(compressor: Compressor, start: Params) -> int:
    """Bytes of a compressed broadcast of ``start``, arrays or shapes."""
    return _num_bytes(compressor, start)


def _contraction(compressor: Compressor) -> Compressor:
    assert compressor.contraction is not None
    return compressor.contraction


def _through(compressor: Compressor, half: Any, memory: Memory, key: PRNGKeyArray) -> tuple[Any, Memory]:
    arrays, whole = _arrays(half)
    if not arrays:
        return half, memory
    received, memory = compressor.compress(arrays, memory, key)
    return whole(received), memory


def _num_bytes(compressor: Compressor, half: Any) -> int:
    arrays, _ = _arrays(half)
    compressed = compressor.num_bytes(arrays) if arrays else 0
    return compressed + sum(map(dense_bytes, jax.tree.leaves(half))) - sum(map(dense_bytes, arrays))


def _arrays(half: Any) -> tuple[Message, Callable[[Message], Any]]:
    """What of a message is compressed, and the function that puts it back in its place."""
    leaves, structure = jax.tree.flatten(half)
    is_compressed = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating) and math.prod(leaf.shape) > 1
    places = [place for place, leaf in enumerate(leaves) if is_compressed(leaf)]

    def whole(received: Message) -> Any:
        after = dict(zip(places, received, strict=True))
        return structure.unflatten([after.get(place, leaf) for place, leaf in enumerate(leaves)])

    return [leaves[place] for place in places], whole
