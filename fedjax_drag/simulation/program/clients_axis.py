"""The clients axis: how the work of one client is repeated for all clients of a round.

All at once (``vmap``), one after another (``map``), in chunks, and divided among the devices of a mesh.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from fedjax_drag.simulation.devices.model_sharding import clients_axis, num_shares

One = Callable[[Any, Any], Any]
"""``(shared, entry) -> output``, for one client."""

Accumulate = Callable[[Any, Any, Any], tuple[Any, Any]]
"""``(shared, entries, outputs) -> (total, kept)``, for a chunk of clients; their entries, outputs and what is kept have
a leading axis of the chunk's length."""


class ClientBatching(NamedTuple):
    """The way over an axis of clients.

    Attributes:
      clients_axis: ``"vmap"`` (all at once, batched) or ``"map"`` (one after another, or in chunks).
      clients_per_chunk: with ``"map"``, how many run at once; None for one.
    """

    clients_axis: str
    clients_per_chunk: int | None = None

    @property
    def is_batched(self) -> bool:
        """Whether several clients run at once."""
        return self.clients_axis == "vmap" or (self.clients_per_chunk or 1) > 1


def map_clients(
    batching: ClientBatching, mesh: Mesh | None, one: One, shared: Any, inputs: Any, into: Any = None
) -> Any:
    """Stacks ``one(shared, entry)`` for every entry of the leading axis of ``inputs``.

    Args:
      batching: the way over the axis, or over a device's share of it.
      mesh: devices among which the axis is divided, or None.
      one: called with ``shared`` and an entry.
      shared: the same for all entries.
      inputs: a pytree with a leading axis.
      into: a pytree like the outputs whose buffers may be overwritten with them; default None. A loop that carries the
        outputs of its last turn back in saves filling new buffers with zeros, which costs as much as a pass over them.
    """
    return sum_clients(batching, mesh, one, lambda shared, entries, outputs: ((), outputs), shared, inputs, into)[1]


def sum_clients(
    batching: ClientBatching,
    mesh: Mesh | None,
    one: One,
    accumulate: Accumulate,
    shared: Any,
    inputs: Any,
    into: Any = None,
) -> tuple[Any, Any]:
    """Calls ``one`` for every entry of ``inputs`` and ``accumulate`` for every chunk of them.

    No more than a chunk of outputs is kept at a time. Each device adds up its share, and the devices' totals are added
    in one all-reduce.

    Args:
      batching: the way over the axis, or over a device's share of it.
      mesh: devices among which the axis is divided, or None.
      one: called with ``shared`` and an entry.
      accumulate: called with ``shared``, the entries of a chunk and the outputs of ``one``.
      shared: the same for all entries.
      inputs: a pytree with a leading axis.
      into: as for :func:`map_clients`, like what is kept.

    Returns:
      The sum of all totals, and what is kept of each entry, with a leading axis as long as that of ``inputs``.
    """
    axis = None if mesh is None or num_shares(mesh) == 1 else clients_axis(mesh)

    def on_one_device(shared: Any, inputs: Any, into: Any) -> tuple[Any, Any]:
        of_entry, of_chunk = functools.partial(one, shared), functools.partial(accumulate, shared)
        if batching.clients_axis == "vmap":
            total, kept = of_chunk(inputs, jax.vmap(of_entry)(inputs))
        else:
            total, kept = _in_chunks(of_entry, of_chunk, inputs, batching.clients_per_chunk or 1, into)
        return (total if axis is None else jax.lax.psum(total, axis)), kept

    if mesh is None or axis is None:
        return on_one_device(shared, inputs, into)
    whole, split = PartitionSpec(), PartitionSpec(axis)
    return _shared_among(mesh, on_one_device, (whole, split, split), (whole, split))(shared, inputs, into)


def _shared_among(
    mesh: Mesh, function: Callable[..., Any], in_specs: tuple[PartitionSpec, ...], out_specs: Any
) -> Callable[..., Any]:
    """``jax.shard_map``, through which arrays without entries do not pass: each device makes its share of them anew.

    With JAX 0.11 XLA ends the process over an operand of no entries, such as the empty leaves of a rule's state.
    """

    def on_all_devices(*operands: Any) -> Any:
        leaves, structure = jax.tree.flatten(operands)
        specs = [spec for spec, one in zip(in_specs, operands, strict=True) for _ in jax.tree.leaves(one)]
        passed = [leaf.size > 0 for leaf in leaves]

        def on_one(*own: Any) -> Any:
            share, whole = iter(own), zip(leaves, specs, passed, strict=True)
            given = [next(share) if passes else _empty_share(leaf, spec, mesh) for leaf, spec, passes in whole]
            return function(*jax.tree.unflatten(structure, given))

        own_specs = tuple(spec for spec, passes in zip(specs, passed, strict=True) if passes)
        own = [leaf for leaf, passes in zip(leaves, passed, strict=True) if passes]
        # Along other axes of the mesh XLA divides what one device along the clients' axis computes.
        shared = {"mesh": mesh, "axis_names": {clients_axis(mesh)}, "check_vma": False}
        return jax.shard_map(on_one, in_specs=own_specs, out_specs=out_specs, **shared)(*own)

    return on_all_devices


def _empty_share(leaf: Any, spec: PartitionSpec, mesh: Mesh) -> jax.Array:
    """A device's share of an array without entries."""
    shape = leaf.shape if spec == PartitionSpec() else (leaf.shape[0] // num_shares(mesh), *leaf.shape[1:])
    return jnp.zeros(shape, leaf.dtype)


def _in_chunks(
    one: Callable[[Any], Any], accumulate: Callable[[Any, Any], tuple[Any, Any]], inputs: Any, chunk: int, into: Any
) -> tuple[Any, Any]:
    """Calls ``one`` for every entry, ``chunk`` of them at once, and ``accumulate`` for every chunk.

    Returns:
      ``(total, rows)``: the sum and the rows of what ``accumulate`` returns for the chunks; the rows in the buffers of
      ``into`` if that is given.
    """
    size = jax.tree.leaves(inputs)[0].shape[0]
    # Inlined, so that the program is the same; and traced once, for their shapes as well as in the loop.
    one, accumulate = jax.jit(one, inline=True), jax.jit(accumulate, inline=True)

    def of_chunk(start: Any, length: int) -> tuple[Any, Any]:
        entries = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, length), inputs)
        if length == 1:  # not a batch of one: a convolution over a batch of filters is another program
            return accumulate(entries, jax.tree.map(lambda y: y[None], one(jax.tree.map(lambda x: x[0], entries))))
        return accumulate(entries, jax.vmap(one)(entries))

    def advance(start: Any, length: int, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        total, out = carry
        part, rows = of_chunk(start, length)
        out = jax.tree.map(lambda o, y: jax.lax.dynamic_update_slice_in_dim(o, y, start, 0), out, rows)
        return jax.tree.map(jnp.add, total, part), out

    total, rows = jax.eval_shape(lambda: of_chunk(0, 1))
    total = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), total)
    if into is None:
        into = jax.tree.map(lambda like: jnp.zeros((size, *like.shape[1:]), like.dtype), rows)
    carry = jax.lax.fori_loop(0, size // chunk, lambda i, carry: advance(i * chunk, chunk, carry), (total, into))
    rest = size % chunk
    return advance(size - rest, rest, carry) if rest else carry
