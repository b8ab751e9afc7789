"""Clients over devices: meshes, and the devices that hold each array.

With a mesh, every device runs the local passes of its share of the cohort; on a mesh with further axes the devices
along them run these together, each with a part of the model
(:mod:`~fedjax_drag.simulation.devices.model_sharding`). Where the method needs sums alone, the
device adds up the messages of its share, and the devices exchange only these sums. Otherwise the messages move from a
split by client to a split by coordinate (one all-to-all), so that any rule, order statistics included, works on whole
columns; a leaf with no axis that the devices divide is copied to all. The new parameters are gathered at the end of the
round.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag import checks, per_client
from fedjax_drag.cores import ENVIRONMENT_VARIABLE
from fedjax_drag.simulation.devices.model_sharding import (
    CLIENTS,
    Specs,
    clients_axis,
    num_shares,
    spec_of,
    split_among,
)

Devices = Sequence[Any]
"""Devices of one kind, of this process or to compile for alone."""

MESHES = ("auto", "cores", "all")
"""Meshes by name."""


def platform_of(devices: Devices | None) -> str:
    """``"cpu"``, ``"gpu"`` or ``"tpu"``, of this process by default."""
    return jax.default_backend() if devices is None else devices[0].platform


def resolve_mesh(
    mesh: Mesh | Mapping[str, int] | str | None, cohort_size: int, only: Devices | None = None
) -> Mesh | None:
    """Checks the argument ``mesh`` of a run.

    Args:
      mesh: None (one device), ``"cores"`` (as many devices of this process as divide the cohort), ``"all"`` (as many of
        all processes, the same number of each), ``"auto"`` (``"cores"`` where :func:`can_share`; else one device), the
        sizes of axes by name, or a mesh. Of several axes one is ``"clients"``; the others divide the model.
      cohort_size: S, which must be a multiple of the number of devices, or of the size of the axis ``"clients"``.
      only: devices that stand for those of all processes; ``"auto"`` is then one device.

    Raises:
      ValueError: if the mesh does not fit the cohort or the machine.
    """
    if mesh == "auto":
        mesh = "cores" if only is None and can_share(cohort_size) else None
    if mesh is None:
        return None
    if isinstance(mesh, str):
        checks.one_of("mesh", mesh, MESHES)
        processes = range(jax.process_count()) if mesh == "all" else [jax.process_index()]
        devices = [jax.local_devices(process) for process in processes] if only is None else [list(only)]
        if mesh == "cores" and len(devices[0]) == 1:
            raise ValueError(
                "mesh='cores': must have several devices, and there is one; call fd.use_cores(), or set "
                f"{ENVIRONMENT_VARIABLE}=1, before anything else in JAX"
            )
        fewest = min(len(own) for own in devices)
        shares = [share for share in range(1, fewest + 1) if cohort_size % (share * len(devices)) == 0]
        # Devices that do not divide the cohort are refused below.
        share = shares[-1] if shares and shares[-1] * len(devices) > 1 else fewest
        mesh = Mesh([device for own in devices for device in own[:share]], (CLIENTS,))
    elif isinstance(mesh, Mapping):
        mesh = _mesh_of_sizes(mesh, jax.devices() if only is None else only)
    if len(mesh.axis_names) != 1 and CLIENTS not in mesh.axis_names:
        allowed = f"must have one axis, over which clients are sharded, or one called {CLIENTS!r} beside others"
        raise ValueError(f"mesh with axes {mesh.axis_names}: {allowed}")
    if cohort_size % num_shares(mesh):
        shares = f"{mesh.size} devices" if num_shares(mesh) == mesh.size else f"{num_shares(mesh)} shares of clients"
        raise ValueError(f"cohort_size={cohort_size}: must be a multiple of the {shares} of the mesh")
    return Mesh(mesh.devices, mesh.axis_names)  # without the types of axes that jax.make_mesh gives it


def _mesh_of_sizes(sizes: Mapping[str, int], devices: Devices) -> Mesh:
    """A mesh of axes by name, neighbours along the last ones."""
    number = math.prod(sizes.values())
    if number > len(devices) or (jax.process_count() > 1 and number < len(devices)):
        raise ValueError(f"mesh={dict(sizes)}: is for {number} devices, and there are {len(devices)}")
    shape = tuple(sizes.values())
    ordered = mesh_utils.create_device_mesh(shape, devices[:number], allow_split_physical_axes=True)
    return Mesh(ordered, tuple(sizes))


def can_share(cohort_size: int) -> bool:
    """Whether several devices of this process, the only one of the run, are of a CPU and divide the cohort."""
    shares = range(2, jax.local_device_count() + 1)
    is_divisible = any(cohort_size % share == 0 for share in shares)
    return is_divisible and jax.default_backend() == "cpu" and jax.process_count() == 1


def split_coordinates(stacked: Any, mesh: Mesh | None, specs: Specs = ()) -> Any:
    """``stacked`` ``[S, *p]`` split along the first parameter axis that the devices divide, and not along S.

    What other axes of the mesh divide of it stays divided.
    """
    if mesh is None:
        return stacked

    def leaf(path: Any, x: jax.Array) -> jax.Array:
        axes = split_among(spec_of(path, x.shape, specs) or [None] * x.ndim, x.shape, mesh)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))

    return jax.tree_util.tree_map_with_path(leaf, stacked)


def bring(examples: Any, index: jax.Array, mesh: Mesh) -> Any:
    """``examples[index]`` of examples that are divided among the devices.

    Args:
      examples: a pytree of arrays whose leading axis :func:`place_data` has divided among them.
      index: of the clients of a round ``[S, L]``, or one list ``[L]`` for all.
      mesh: the devices.

    Returns:
      ``[S, L, ...]``, on each device those of its share of the clients; for one list ``[L, ...]``, on every device.
    """
    axis, of_clients = clients_axis(mesh), index.ndim == 2

    def share(own: Any, index: jax.Array) -> Any:
        """Every device adds what it has of the whole, the rest being 0."""

        def leaf(x: jax.Array) -> jax.Array:
            place = index - jax.lax.axis_index(axis) * x.shape[0]
            is_own = ((place >= 0) & (place < x.shape[0])).reshape(*index.shape, *[1] * (x.ndim - 1))
            part = jnp.where(is_own, x[jnp.clip(place, 0, x.shape[0] - 1)], jnp.zeros((), x.dtype))
            part = part.astype(jnp.uint8) if x.dtype == bool else part  # which cannot be added
            whole = jax.lax.psum_scatter(part, axis, tiled=True) if of_clients else jax.lax.psum(part, axis)
            return whole.astype(x.dtype)

        return jax.tree.map(leaf, own)

    if num_shares(mesh) == 1:
        return jax.tree.map(lambda x: x[index], examples)
    split = PartitionSpec(axis)
    out = split if of_clients else PartitionSpec()
    in_specs = split, PartitionSpec()
    return jax.shard_map(share, mesh=mesh, in_specs=in_specs, out_specs=out, axis_names={axis})(examples, index)


def along(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays whose leading axis the devices divide."""
    return NamedSharding(mesh, PartitionSpec(clients_axis(mesh)))


def everywhere(mesh: Mesh | None) -> NamedSharding | None:
    """The sharding of arrays that every device has a copy of; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def placement(state: Any, mesh: Mesh | None, specs: Specs = ()) -> Any:
    """The shardings of a run's state: a copy on every device, rows of clients divided among them.

    Rows whose number the devices do not divide are copied too. What is like the parameters is divided as ``specs`` say.
    None without a mesh.
    """
    if mesh is None:
        return None

    def leaf(path: Any, x: Any, of_clients: bool = False) -> NamedSharding:
        shape = np.shape(x)
        entries: list[Any] = spec_of(path, shape, specs) or [None] * len(shape) * of_clients
        if of_clients and shape[0] % num_shares(mesh) == 0:
            entries[0] = clients_axis(mesh)
        return NamedSharding(mesh, PartitionSpec(*entries))

    def node(path: Any, part: Any) -> Any:
        if not per_client.is_per_client(part):
            return leaf(path, part)
        return jax.tree_util.tree_map_with_path(lambda below, x: leaf((*path, *below), x, of_clients=True), part)

    return jax.tree_util.tree_map_with_path(node, state, is_leaf=per_client.is_per_client)


def placed(state: Any, mesh: Mesh | None, specs: Specs = ()) -> Any:
    """``state`` with the shardings of :func:`placement`; also inside a compiled program."""
    return state if mesh is None else jax.lax.with_sharding_constraint(state, placement(state, mesh, specs))


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array or a number, and whether its dtype gives way to others."""
    weak = (isinstance(leaf, float | int) and not isinstance(leaf, np.generic)) or getattr(leaf, "weak_type", False)
    dtype = jnp.result_type(leaf) if isinstance(leaf, float | int) else leaf.dtype
    if not jnp.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=weak)


def outlined(values: Any, sharding: Any, mesh: Mesh | None = None) -> Any:
    """Shapes of ``values`` as :func:`place_data` would put them on the devices of a sharding; nothing is placed.

    Args:
      values: a pytree of arrays or shapes.
      sharding: one for all, or None for the default device.
      mesh: as for :func:`place_data`.
    """

    def leaf(x: Any) -> jax.ShapeDtypeStruct:
        like = shape_of(x)
        shape = (like.shape[0] + -like.shape[0] % num_shares(mesh), *like.shape[1:]) if mesh else like.shape
        return like.update(shape=shape, sharding=sharding)

    return jax.tree.map(leaf, values)


def place(values: Any, shardings: Any) -> Any:
    """``values`` on the devices of ``shardings``.

    Args:
      values: a pytree of arrays; the same ones in every process whose devices take part.
      shardings: one for all, a pytree of one for each, or None for the default device.
    """
    if shardings is None or jax.process_count() == 1:
        return jax.device_put(values, shardings)

    def leaf(x: Any, sharding: Any) -> jax.Array:
        if sharding.is_fully_addressable or not getattr(x, "is_fully_addressable", True):
            return jax.device_put(x, sharding)
        return jax.make_array_from_callback(np.shape(x), sharding, lambda index: x[index])

    return jax.tree.map(leaf, values, jax.tree.broadcast(shardings, values))


_placed: ContextVar[dict[Any, Any] | None] = ContextVar("placed", default=None)


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Lets :func:`place_data` place an array of the host once, however often it is given it."""
    token = _placed.set({})
    try:
        yield
    finally:
        _placed.reset(token)


def place_data(values: Any, sharding: Any, mesh: Mesh | None = None) -> Any:
    """:func:`place` with one sharding for all, of arrays that nobody changes and that no program is given to keep.

    An array that is there twice is placed once; inside of :func:`sharing` one that was placed before is not again.

    Args:
      values: a pytree of arrays of the host.
      sharding: as for :func:`place`.
      mesh: if given, its devices divide the leading axis of each array, which is padded with zeros for it.
    """
    shared = _placed.get()
    known: dict[Any, Any] = {} if shared is None else shared

    def leaf(x: Any) -> Any:
        key = id(x), sharding
        if key not in known:
            whole = x if mesh is None else np.pad(x, [(0, -len(x) % num_shares(mesh)), *[(0, 0)] * (x.ndim - 1)])
            known[key] = x, place(whole, sharding)  # with the array itself, so that no other gets its id
        return known[key][1]

    return jax.tree.map(leaf, values)


def fetch(arrays: Any) -> Any:
    """``arrays`` in host memory. Where several processes hold parts of them, all these processes must call this."""

    def whole(x: Any) -> Any:
        here = x.is_fully_addressable or x.is_fully_replicated if isinstance(x, jax.Array) else True
        return x if here else multihost_utils.process_allgather(x, tiled=True)

    return jax.device_get(jax.tree.map(whole, arrays))


def own_copy(arrays: Any) -> Any:
    """The part of ``arrays`` on the first device of this process; of arrays that every device has, all of it."""
    return jax.tree.map(lambda x: x.addressable_data(0) if isinstance(x, jax.Array) else x, arrays)
