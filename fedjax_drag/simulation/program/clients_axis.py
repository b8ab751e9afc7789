"""The clients axis: how the work of one client is repeated for all clients of a round.

All at once (``vmap``), one after another (``map``), in chunks, and divided among the devices of a mesh.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

Mapper = Callable[..., Any]
"""``(fn, shared, inputs, into=None) -> outputs``: ``fn(shared, entry)`` for every entry of the leading axis of
``inputs``. ``into`` is a pytree like the outputs whose memory may be overwritten with them: a loop that carries the
outputs of its last turn back in saves filling fresh memory with zeros, which costs as much as a pass over it."""

Accumulator = Callable[..., tuple[Any, Any]]
"""``(fn, accumulate, shared, inputs) -> (total, kept)``: calls ``fn(shared, entry)`` for every entry and
``accumulate(shared, entries, outputs) -> (total, kept)`` for every chunk of them. Returns the sum of all totals, and
what is kept of each entry, with a leading axis as long as that of ``inputs``."""


class Walk(NamedTuple):
    """The way over an axis of clients.

    Attributes:
      clients_axis: ``"vmap"`` or ``"map"``.
      clients_per_chunk: with ``"map"``, how many run at once; None for one.
    """

    clients_axis: str
    clients_per_chunk: int | None = None


def make_mapper(clients_axis: str, clients_per_chunk: int | None, mesh: Mesh | None) -> Mapper:
    """How one client's work is repeated for the cohort.

    Args:
      clients_axis: ``"vmap"`` (all at once, batched) or ``"map"`` (one after another).
      clients_per_chunk: with ``"map"``, how many run at once; default 1.
      mesh: devices among which the axis is divided, or None.
    """

    def on_one_device(fn, shared, inputs, into=None):
        one = lambda entry: fn(shared, entry)
        if clients_axis == "vmap":
            return jax.vmap(one)(inputs)
        return _walk(one, lambda _, outputs: ((), outputs), inputs, clients_per_chunk or 1, into)[1]

    if mesh is None:
        return on_one_device
    split = PartitionSpec(mesh.axis_names)

    def on_all_devices(fn, shared, inputs, into=None):
        share = lambda shared, rows, into: on_one_device(fn, shared, rows, into)
        specs = (PartitionSpec(), split, split)
        return jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(shared, inputs, into)

    return on_all_devices


def make_accumulator(clients_axis: str, clients_per_chunk: int | None, mesh: Mesh | None) -> Accumulator:
    """How the clients' results are added up as they come: no more than a chunk of them lies in memory at a time.

    Arguments as for :func:`make_mapper`. Each device adds up its share, and the devices' totals are added in one
    all-reduce.
    """

    def on_one_device(fn, accumulate, shared, inputs):
        one, accumulated = (
            lambda entry: fn(shared, entry),
            lambda entries, outputs: accumulate(shared, entries, outputs),
        )
        if clients_axis == "vmap":
            return accumulated(inputs, jax.vmap(one)(inputs))
        return _walk(one, accumulated, inputs, clients_per_chunk or 1, None)

    if mesh is None:
        return on_one_device
    split = PartitionSpec(mesh.axis_names)

    def on_all_devices(fn, accumulate, shared, inputs):
        def share(shared, rows):
            total, kept = on_one_device(fn, accumulate, shared, rows)
            return jax.lax.psum(total, mesh.axis_names), kept

        specs = (PartitionSpec(), split)
        return jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)(shared, inputs)

    return on_all_devices


def _walk(
    one: Callable[[Any], Any], accumulate: Callable[[Any, Any], tuple[Any, Any]], inputs: Any, chunk: int, into: Any
) -> tuple[Any, Any]:
    """``one`` for every entry, ``chunk`` of them at once.

    Returns:
      ``(total, rows)``: the sum and the rows of what ``accumulate`` returns for the chunks; the rows in the memory of
      ``into`` if that is given.
    """
    size = jax.tree.leaves(inputs)[0].shape[0]

    def block(start, length):
        entries = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, length), inputs)
        if length == 1:  # not a batch of one: a convolution over a batch of filters is another program
            return accumulate(entries, jax.tree.map(lambda y: y[None], one(jax.tree.map(lambda x: x[0], entries))))
        return accumulate(entries, jax.vmap(one)(entries))

    def advance(start, length, carry):
        total, out = carry
        part, rows = block(start, length)
        out = jax.tree.map(lambda o, y: jax.lax.dynamic_update_slice_in_dim(o, y, start, 0), out, rows)
        return jax.tree.map(jnp.add, total, part), out

    total, rows = jax.eval_shape(lambda: block(0, 1))
    total = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), total)
    if into is None:
        into = jax.tree.map(lambda like: jnp.zeros((size, *like.shape[1:]), like.dtype), rows)
    carry = jax.lax.fori_loop(0, size // chunk, lambda i, carry: advance(i * chunk, chunk, carry), (total, into))
    rest = size % chunk
    return advance(size - rest, rest, carry) if rest else carry
