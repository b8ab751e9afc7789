"""Checkpoints of a run's state, written with Orbax.

The state is stored as a flat mapping from each leaf's path to an array, so that a checkpoint can be
read without knowing the classes it was made of. Of several processes the first writes and reads the whole state, so
that a run may go on with another number of them.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag.experiment.results import CHECKPOINTS
from fedjax_drag.simulation.distributed import from_first, is_first
from fedjax_drag.simulation.mesh import fetch

KEEP = 2


class Checkpoints:
    """The checkpoints of one results folder; the newest :data:`KEEP` are kept.

    Args:
      folder: the run's results folder.
    """

    def __init__(self, folder: Path):
        import orbax.checkpoint as ocp  # here: slow to import, and only runs that write need it

        self._ocp = ocp
        self._path = (folder / CHECKPOINTS).absolute()

    @functools.cached_property
    def _manager(self) -> Any:
        """Made when it is needed: it starts threads of its own, and a sweep has many runs open at once."""
        self._path.mkdir(exist_ok=True)  # Orbax itself would wait for the other processes
        alone = self._ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
        options = self._ocp.CheckpointManagerOptions(max_to_keep=KEEP, create=False, multiprocessing_options=alone)
        handlers = self._ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        return self._ocp.CheckpointManager(self._path, item_handlers=handlers, options=options)

    def latest(self) -> int | None:
        """The round of the newest checkpoint, or None."""
        return from_first(lambda: self._manager.latest_step())

    def save(self, round_number: int, state: Any) -> None:
        """Stores ``state``; it is on disk, whole, when this returns. All processes that have parts of it must call."""
        leaves = {name: leaf for name, leaf in _flatten(state).items() if leaf.size}
        if jax.distributed.is_initialized():
            leaves = fetch(leaves)
        if not is_first():
            return
        self._manager.save(round_number, args=self._ocp.args.StandardSave(leaves))
        self._manager.wait_until_finished()

    def restore(self, round_number: int, like: Any) -> Any:
        """Reads the state of a round.

        Args:
          round_number: one that was saved.
          like: a state of the same structure, shapes and types (arrays or ``jax.ShapeDtypeStruct``).

        Returns:
          The state.

        Raises:
          ValueError: the stored state has another structure.
        """
        shapes = jax.eval_shape(_flatten, like)
        wanted = {name: leaf for name, leaf in shapes.items() if leaf.size}
        stored = from_first(self._read, round_number, wanted)
        stored |= {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items() if not leaf.size}
        return jax.tree_util.tree_map_with_path(lambda path, leaf: _revive(stored[_name(path)], leaf), like)

    def _read(self, round_number: int, wanted: dict[str, Any]) -> dict[str, Any]:
        found = self._manager.item_metadata(round_number) or {}
        for name in sorted({*wanted, *found}):
            here, there = (str(tree[name].shape) if name in tree else "nothing" for tree in (wanted, found))
            if here != there:
                fault = f"has {there} at {name}; must have {here} for this configuration"
                raise ValueError(f"checkpoint of round {round_number}: {fault}")
        return dict(self._manager.restore(round_number, args=self._ocp.args.StandardRestore(wanted)))

    def close(self) -> None:
        """Releases what Orbax holds."""
        if "_manager" in vars(self):
            self._manager.close()
            del self._manager


def _flatten(state: Any) -> dict[str, Any]:
    """Leaves by name, random keys as their raw data: Orbax stores plain arrays of at least one entry."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]

    def plain(leaf):
        if isinstance(leaf, np.ndarray):  # state that is kept on the host stays there
            return leaf
        return jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)

    return {_name(path): plain(leaf) for path, leaf in paths}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _revive(stored: jax.Array, like: Any) -> jax.Array:
    return jax.random.wrap_key_data(stored) if _is_key(like) else stored


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
