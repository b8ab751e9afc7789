"""Clients over devices: which way an axis of clients or batches is walked, and where arrays lie.

With a mesh, every device runs the local passes of its share of the cohort. Their messages then move from a split by
client to a split by coordinate (one all-to-all), so that any rule, order statistics included, works on whole columns;
only a leaf with no axis that the devices divide is copied to all. The new parameters are gathered at the
end of the round.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag import checks

Mapper = Callable[[Callable[[Any, Any], Any], Any, Any], Any]
"""``(fn, shared, inputs) -> outputs``: ``fn(shared, entry)`` for every entry of the leading axis of ``inputs``."""


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

    def on_one_device(fn, shared, inputs):
        one = lambda entry: fn(shared, entry)
        return (
            jax.vmap(one)(inputs) if clients_axis == "vmap" else jax.lax.map(one, inputs, batch_size=clients_per_chunk)
        )

    if mesh is None:
        return on_one_device
    split = PartitionSpec(mesh.axis_names)

    def on_all_devices(fn, shared, inputs):
        share = lambda shared, rows: on_one_device(fn, shared, rows)
        specs = (PartitionSpec(), split)
        return jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(shared, inputs)

    return on_all_devices


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


def copies(tree: Any, mesh: Mesh | None) -> Any:
    """``tree`` with every leaf on every device; also inside a compiled program."""
    return tree if mesh is None else jax.lax.with_sharding_constraint(tree, everywhere(mesh))
