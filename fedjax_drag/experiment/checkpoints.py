"""Checkpoints of a run's state, written with Orbax.

The state is stored as a flat mapping from each leaf's path to an array, so that a checkpoint can be
read without knowing the classes it was made of.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag.experiment.results import CHECKPOINTS

KEEP = 2


class Checkpoints:
    """The checkpoints of one results folder; the newest :data:`KEEP` are kept.

    Args:
      folder: the run's results folder.
    """

    def __init__(self, folder: Path):
        import orbax.checkpoint as ocp  # here: slow to import, and only runs that write need it

        self._ocp = ocp
        options = ocp.CheckpointManagerOptions(max_to_keep=KEEP, create=True)
        path = (folder / CHECKPOINTS).absolute()
        self._manager = ocp.CheckpointManager(path, item_handlers=ocp.StandardCheckpointHandler(), options=options)

    def latest(self) -> int | None:
        """The round of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def save(self, round_number: int, state: Any) -> None:
        """Stores ``state``; it is on disk, whole, when this returns."""
        leaves = {name: leaf for name, leaf in _flatten(state).items() if leaf.size}
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
        found = self._manager.item_metadata(round_number) or {}
        for name in sorted({*wanted, *found}):
            here, there = (str(tree[name].shape) if name in tree else "nothing" for tree in (wanted, found))
            if here != there:
                fault = f"has {there} at {name}; must have {here} for this configuration"
                raise ValueError(f"checkpoint of round {round_number}: {fault}")
        stored = dict(self._manager.restore(round_number, args=self._ocp.args.StandardRestore(wanted)))
        stored |= {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items() if not leaf.size}
        return jax.tree_util.tree_map_with_path(lambda path, leaf: _revive(stored[_name(path)], leaf), like)

    def close(self) -> None:
        """Releases what Orbax holds."""
        self._manager.close()


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
