"""A run's state as arrays by name, as checkpoints hold it, and how Orbax writes and reads them."""

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag.experiment.run.errors import MismatchError
from fedjax_drag.simulation.devices import host_state
from fedjax_drag.simulation.devices.placement import fetch
from fedjax_drag.simulation.devices.processes import checksum
from fedjax_drag.simulation.model.initial_params import CHECKSUM, leaf_name


def on_host(state: Any) -> dict[str, Any]:
    """The leaves of a state by name, in host memory; of a CPU's state its own buffers. Rows in a file are left out.

    Of several processes all that have parts of the state must call.
    """
    in_memory = {name: leaf for name, leaf in flattened(state).items() if not isinstance(leaf, host_state.FileRows)}
    leaves = {name: leaf for name, leaf in in_memory.items() if leaf.size}
    return fetch(leaves) if jax.distributed.is_initialized() else jax.device_get(leaves)


def flattened(state: Any) -> dict[str, Any]:
    """Leaves by name, random keys as their raw data: Orbax stores plain arrays of at least one entry."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):  # state that is kept on the host stays there
            return leaf
        return jnp.asarray(host_state.raw(leaf))

    return {leaf_name(path): plain(leaf) for path, leaf in paths}


def rebuilt(stored: Mapping[str, Any], like: Any) -> Any:
    """The state whose leaves were stored.

    Args:
      stored: leaves by name; those without entries are not among them.
      like: a state of the same structure, shapes and dtypes (arrays or ``jax.ShapeDtypeStruct``).

    Raises:
      MismatchError: other leaves, shapes or dtypes were stored.
    """
    shapes = jax.eval_shape(flattened, like)
    wanted = {name: leaf for name, leaf in shapes.items() if leaf.size}
    for name in sorted({*wanted, *stored}):
        here, there = (str(leaves[name].shape) if name in leaves else "nothing" for leaves in (wanted, stored))
        if here != there:
            raise MismatchError(f"has {there} at {name}; must have {here} for this configuration")
        here, there = wanted[name].dtype, stored[name].dtype
        if here != there:
            x64 = "; JAX_ENABLE_X64 must be what it was" if {here.itemsize, there.itemsize} == {4, 8} else ""
            raise MismatchError(f"has {there} at {name}; this run has {here}{x64}")
    whole = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items() if not leaf.size} | dict(stored)

    def revived(path: Any, leaf: Any) -> jax.Array:
        return host_state.revived(whole[leaf_name(path)], leaf)

    return jax.tree_util.tree_map_with_path(revived, like)


def write(folder: Path, arrays: Mapping[str, Any]) -> int:
    """Writes arrays by name into a new folder, with their checksum, which is returned: Orbax sees no flipped bit."""
    found = checksum(arrays)
    with _quiet_orbax() as (ocp, orbax):
        orbax.save(folder, args=ocp.args.StandardSave({**arrays, CHECKSUM: np.uint32(found)}))
    return found


def read(folder: Path) -> tuple[dict[str, Any], int]:
    """The arrays that :func:`write` has written, and the checksum that they have.

    Raises:
      Exception: they are damaged; Orbax and TensorStore raise many kinds.
    """
    with _quiet_orbax() as (ocp, orbax):
        metadata = dict(orbax.metadata(folder).item_metadata)
        shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in metadata.items()}
        arrays = dict(orbax.restore(folder, args=ocp.args.StandardRestore(shapes)))
    arrays.pop(CHECKSUM, None)
    return arrays, checksum(arrays)


@functools.cache
def _orbax() -> tuple[Any, Any]:
    """Orbax, which is slow to import, and what writes and reads with it in this process alone."""
    import orbax.checkpoint as ocp

    alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
    return ocp, ocp.Checkpointer(handler, multiprocessing_options=alone)


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[tuple[Any, Any]]:
    """Orbax without its log, where it writes pages about what it also raises."""
    logger, none = logging.getLogger("absl"), lambda _: False
    logger.addFilter(none)
    try:
        yield _orbax()
    finally:
        logger.removeFilter(none)
