"""Clients over devices: which way an axis of clients or batches is walked, and where arrays lie.

With a mesh, every device runs the local passes of its share of the cohort. Their messages then move from a split by
client to a split by coordinate (one all-to-all), so that any rule, order statistics included, works on whole columns;
only a leaf with no axis that the devices divide is copied to all. The new parameters are gathered at the
end of the round.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag import checks, per_client

Mapper = Callable[..., Any]
"""``(fn, shared, inputs, into=None) -> outputs``: ``fn(shared, entry)`` for every entry of the leading axis of
``inputs``. ``into`` is a pytree like the outputs whose memory may be overwritten with them: a loop that carries the
outputs of its last turn back in saves filling fresh memory with zeros, which costs as much as a pass over it."""


def resolve_mesh(mesh: Mesh | str | None, cohort_size: int) -> Mesh | None:
    """Checks the argument ``mesh`` of a run.

    Args:
      mesh: None (one device), ``"cores"`` (as many local devices as divide the cohort) or a mesh of one axis.
      cohort_size: S, which must be a multiple of the number of devices.

    Raises:
      ValueError: if the mesh does not fit the cohort or the machine.
    """
    if mesh is None:
        return None
    if isinstance(mesh, str):
        checks.one_of("mesh", mesh, ("cores",))
        devices = jax.local_devices()
        if len(devices) == 1:
            raise ValueError(
                "mesh='cores': only one device; call jax.config.update('jax_num_cpu_devices', number_of_cores) "
                "before anything else in JAX"
            )
        share = max(n for n in range(1, len(devices) + 1) if cohort_size % n == 0)
        mesh = Mesh(devices[: share if share > 1 else None], ("clients",))
    if len(mesh.axis_names) != 1:
        raise ValueError(f"mesh with axes {mesh.axis_names}: must have one axis, over which clients are sharded")
    if cohort_size % mesh.size:
        raise ValueError(f"cohort_size={cohort_size}: must be a multiple of the {mesh.size} devices of the mesh")
    return mesh


def make_mapper(clients_axis: str, clients_per_chunk: int | None, mesh: Mesh | None) -> Mapper:
    """How one client's work is repeated for the cohort.

    Args:
      clients_axis: ``"vmap"`` (all at once, batched) or ``"map"`` (one after another).
      clients_per_chunk: with ``"map"``, how many run at once; default 1.
      mesh: devices among which the axis is divided, or None.
    """

    def on_one_device(fn, shared, inputs, into=None):
        one = lambda entry: fn(shared, entry)
        return jax.vmap(one)(inputs) if clients_axis == "vmap" else _map(one, inputs, clients_per_chunk or 1, into)

    if mesh is None:
        return on_one_device
    split = PartitionSpec(mesh.axis_names)

    def on_all_devices(fn, shared, inputs, into=None):
        share = lambda shared, rows, into: on_one_device(fn, shared, rows, into)
        specs = (PartitionSpec(), split, split)
        return jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(shared, inputs, into)

    return on_all_devices


def _map(one: Callable[[Any], Any], inputs: Any, chunk: int, into: Any) -> Any:
    """``one`` for every entry, ``chunk`` of them at once, written into the memory of ``into``."""
    size = jax.tree.leaves(inputs)[0].shape[0]
    if into is None:
        shapes = jax.eval_shape(lambda xs: one(jax.tree.map(lambda x: x[0], xs)), inputs)
        into = jax.tree.map(lambda like: jnp.zeros((size, *like.shape), like.dtype), shapes)

    def block(start, length, out):
        entries = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, length), inputs)
        if length == 1:  # not a batch of one: a convolution over a batch of filters is another program
            rows = jax.tree.map(lambda y: y[None], one(jax.tree.map(lambda x: x[0], entries)))
        else:
            rows = jax.vmap(one)(entries)
        return jax.tree.map(lambda o, y: jax.lax.dynamic_update_slice_in_dim(o, y, start, 0), out, rows)

    out = jax.lax.fori_loop(0, size // chunk, lambda i, out: block(i * chunk, chunk, out), into)
    rest = size % chunk
    return block(size - rest, rest, out) if rest else out


def split_coordinates(stacked: Any, mesh: Mesh | None) -> Any:
    """Asks for ``[S, *p]`` split along the first parameter axis that the devices divide, whole in S."""
    if mesh is None:
        return stacked

    def leaf(x):
        axes = [None] * x.ndim
        divisible = [axis for axis in range(1, x.ndim) if x.shape[axis] % mesh.size == 0]
        if divisible:
            axes[divisible[0]] = mesh.axis_names[0]
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))

    return jax.tree.map(leaf, stacked)


def everywhere(mesh: Mesh | None) -> NamedSharding | None:
    """The sharding of what every device holds a copy of; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def placement(state: Any, mesh: Mesh | None) -> Any:
    """The shardings of a run's state: a copy on every device, rows of clients divided among them.

    Rows that the devices do not divide are copied too. None without a mesh.
    """
    if mesh is None:
        return None

    def of_rows(x):
        return NamedSharding(mesh, PartitionSpec(mesh.axis_names[0] if x.shape[0] % mesh.size == 0 else None))

    def node(part):
        return jax.tree.map(of_rows, part) if per_client.is_per_client(part) else everywhere(mesh)

    return jax.tree.map(node, state, is_leaf=per_client.is_per_client)


def placed(state: Any, mesh: Mesh | None) -> Any:
    """``state`` with every leaf where :func:`placement` wants it; also inside a compiled program."""
    return state if mesh is None else jax.lax.with_sharding_constraint(state, placement(state, mesh))
