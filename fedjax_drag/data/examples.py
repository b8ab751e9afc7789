"""Examples of one's own: pytrees of arrays, checked, in the types in which they are stored."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks
from fedjax_drag.data import targets
from fedjax_drag.data.normalization import UNSCALED

_SMALLEST_SIDE, _MOST_CHANNELS = 8, 4
"""Of an image: a last axis of that length is not taken for channels behind a first of at most so many."""


def as_arrays(name: str, values: Any) -> Any:
    """A pytree of NumPy arrays: of dicts, tuples of arrays, other nodes of JAX; all else is one array, a list too.

    Raises:
      ValueError: one line that names what is no array.
    """
    is_one = lambda node: node is None or (isinstance(node, list | tuple) and not _are_arrays(node))
    return each(as_array, name, values, is_leaf=is_one)


def each(function: Callable[..., Any], name: str, arrays: Any, *others: Any, **options: Any) -> Any:
    """``function(name, array, *others)`` of every array of a pytree, its path behind the name."""

    def leaf(path: Any, *own: Any) -> Any:
        return function(name + jax.tree_util.keystr(path), *own)

    return jax.tree_util.tree_map_with_path(leaf, arrays, *others, **options)


def _are_arrays(node: Any) -> bool:
    """Whether a node is an array with axes, or holds such arrays; NumPy takes another tuple for one array."""
    if isinstance(node, tuple):
        return len(node) > 0 and all(map(_are_arrays, node))
    return isinstance(node, Mapping) or getattr(node, "ndim", 0) > 0


def as_array(name: str, values: Any) -> np.ndarray:
    """One array of NumPy, in the machine's order of bytes.

    Raises:
      ValueError: one line that says why it is none, or how many entries are masked.
    """
    if np.ma.is_masked(values):
        raise checks.ArgumentError(
            name, f"{np.ma.count_masked(values)} entries are masked; must be none, as after .filled(0)"
        )
    try:
        array = np.asarray(values)
        wide = jnp.issubdtype(array.dtype, jnp.floating) and not np.issubdtype(array.dtype, np.floating)  # bfloat16
        return array.astype(np.float32 if wide else array.dtype.newbyteorder("="), copy=False)
    except (ValueError, TypeError, RuntimeError) as error:  # lists of unequal lengths, tensors of other libraries
        raise checks.ArgumentError(name, f"must be an array; {checks.first_line(error)}") from error


def shapes(arrays: Any) -> Any:
    """The shape of one example: a tuple, or a pytree with one in the place of each array."""
    return jax.tree.map(lambda x: tuple(x.shape[1:]), arrays)


def checked(part: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Inputs, in a floating type still as they were given, and targets.

    Raises:
      ValueError: one line that names the array that does not fit.
    """
    x, y = (as_arrays(f"{part}_{name}", values) for name, values in (("x", x), ("y", y)))
    x, y = each(_input, f"{part}_x", x), each(targets.stored, f"{part}_y", y)
    leaves, least = jax.tree.leaves((x, y)), 2 if isinstance(x, np.ndarray) else 1
    fits = all(leaf.shape[:1] == leaves[0].shape[:1] and leaf.size for leaf in leaves)
    if not fits or not all(map(jax.tree.leaves, (x, y))) or leaves[0].ndim < least:
        given = ", ".join(str(jax.tree.map(np.shape, arrays)) for arrays in (x, y))
        raise ValueError(f"{part}_x, {part}_y: shapes {given}: must be [N, ...] and [N, ...], no axis of length 0")
    return x, y


def _input(name: str, x: np.ndarray) -> np.ndarray:
    """A checked array of inputs, images with a channel axis."""
    if x.dtype != np.uint8 and x.dtype not in UNSCALED and not np.issubdtype(x.dtype, np.floating):
        allowed = "uint8 (images, 0..255), floating, int8 or int32 (tokens), or bool (masks)"
        raise ValueError(f"{name}: of type {x.dtype}: must be {allowed}")
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[..., None]
    if np.issubdtype(x.dtype, np.floating):
        targets.finite32(name, x)
    return np.ascontiguousarray(x)


def check_channels(name: str, x: np.ndarray) -> None:
    """Refuses images whose channels come first, or warns of them where inputs may be meant to have such a shape."""
    if x.ndim != 4 or x.shape[1] > _MOST_CHANNELS or min(x.shape[2:]) < _SMALLEST_SIDE or x.dtype in UNSCALED:
        return
    message = (
        f"{name}: of shape {x.shape}: images must be [N, H, W, C]; take np.moveaxis(x, 1, -1) of all inputs if "
        "axis 1 is the channels"
    )
    if x.dtype == np.uint8 or x.shape[2] == x.shape[3]:
        raise ValueError(message)
    warnings.warn(message, stacklevel=3)
