"""Facts that follow from shapes alone, found once for equal ones."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Found = TypeVar("Found")


def by_shape(function: Callable[..., Found]) -> Callable[..., Found]:
    """``function`` of pytrees, which is called once for equal structures, shapes and dtypes, with these alone."""

    @functools.lru_cache(maxsize=256)
    def of_shapes(structure: Any, leaves: tuple[jax.ShapeDtypeStruct, ...]) -> Found:
        return function(*jax.tree.unflatten(structure, leaves))

    @functools.wraps(function)
    def called(*arguments: Any) -> Found:
        leaves, structure = jax.tree.flatten(arguments)
        return of_shapes(structure, tuple(map(shape_of, leaves)))

    return called


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array or a number, and whether its dtype gives way to others."""
    weak = (isinstance(leaf, float | int) and not isinstance(leaf, np.generic)) or getattr(leaf, "weak_type", False)
    dtype = jnp.result_type(leaf) if isinstance(leaf, float | int) else leaf.dtype
    if not jnp.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=weak)
