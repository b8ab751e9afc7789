"""A run's state as arrays by name, as checkpoints hold it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag.experiment.run.errors import MismatchError
from fedjax_drag.simulation.devices import host_state
from fedjax_drag.simulation.devices.placement import fetch
from fedjax_drag.simulation.model.initial_params import leaf_name


def on_host(state: Any) -> dict[str, Any]:
    """The leaves of a state by name, in host memory; of a CPU's state its own buffers. Rows in a file are left out.

    Of several processes all that have parts of the state must call.
    """
    in_memory = {name: leaf for name, leaf in flattened(state).items() if not isinstance(leaf, host_state.FileRows)}
    leaves = {name: leaf for name, leaf in in_memory.items() if leaf.size}
    return fetch(leaves) if jax.distributed.is_initialized() else jax.device_get(leaves)


def check_fits(where: str, present: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuses a state that has other leaves, shapes or dtypes than the run's."""
    for name in sorted({*wanted, *present}):
        here, there = (str(tree[name].shape) if name in tree else "nothing" for tree in (wanted, present))
        if here != there:
            raise MismatchError(f"{where}: has {there} at {name}; must have {here} for this configuration")
        here, there = wanted[name].dtype, present[name].dtype
        if here != there:
            x64 = "; JAX_ENABLE_X64 must be what it was" if {here.itemsize, there.itemsize} == {4, 8} else ""
            raise MismatchError(f"{where}: has {there} at {name}; this run has {here}{x64}")


def flattened(state: Any) -> dict[str, Any]:
    """Leaves by name, random keys as their raw data: Orbax stores plain arrays of at least one entry."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):  # state that is kept on the host stays there
            return leaf
        return jnp.asarray(host_state.raw(leaf))

    return {leaf_name(path): plain(leaf) for path, leaf in paths}


def revived(stored: jax.Array, like: Any) -> jax.Array:
    """A leaf that was stored, a random key where ``like`` is one."""
    return host_state.revived(stored, jnp.result_type(like) if host_state.is_key(like) else None)
