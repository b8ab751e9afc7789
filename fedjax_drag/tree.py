"""Arithmetic on parameter pytrees and on stacked pytrees ``[S, *p]``.

Vectors are whole models: a norm or a cosine runs over all leaves together. Statistics accumulate in
float32 (float64 for float64 leaves), whatever the dtype of the leaves, and are scaled by the largest entry
so that neither a norm of 1e30 nor one of 1e-30 over- or underflows.

Reductions over clients are matrix products with the weights: one pass over the deltas, where a ``mean`` over the
leading axis costs up to 80 passes on CPU. For a single client, ``[1, *p]``, they are written without a product: XLA
then fuses them with the computation of the delta and with the sum that it is added to, and never stores the delta.

Accelerators are bound by memory, so there every pass does what the CPU does in a second one for rare inputs. Their
forms reshape nothing: a TPU copies an array whose last axes change, and devices that share it exchange it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag.kernels.arithmetic import (
    accurate,
    add,
    cohort_size,
    expand,
    inverse,
    move,
    product,
    row_sums,
    scale,
    stored,
    subtract,
    take,
    where,
    zeros_like,
)
from fedjax_drag.kernels.norms import SAFE_SQUARES, angles, cosines, finite_rows, is_finite, norm, norms, usable_rows
from fedjax_drag.kernels.sums import mean, mix, uniform_weights, weighted_sum
from fedjax_drag.types import STATIC_EXTRAS, Deltas, Params, State

__all__ = [
    "SAFE_SQUARES",
    "accurate",
    "add",
    "angles",
    "cast_like",
    "check_arrays",
    "check_cohort",
    "check_like",
    "check_structure",
    "check_types",
    "cohort_size",
    "cosines",
    "described",
    "expand",
    "finite_rows",
    "initial_state",
    "inverse",
    "is_finite",
    "mean",
    "mismatch",
    "mix",
    "move",
    "norm",
    "norms",
    "product",
    "row_sums",
    "scale",
    "stored",
    "subtract",
    "take",
    "uniform_weights",
    "usable_rows",
    "weighted_sum",
    "where",
    "zeros_like",
]


def check_cohort(params: Params, deltas: Deltas) -> int:
    """Returns S after checking that ``deltas`` is ``params`` with one more leading axis.

    Raises:
      ValueError: naming the first leaf that does not match.
    """
    check_arrays("params", params)
    if _are_separate(params, deltas):
        raise ValueError(
            f"deltas: a {type(deltas).__name__} of {len(deltas)}; must be like params with a leading client axis, "
            "jax.tree.map(lambda *leaves: jnp.stack(leaves), *deltas)"
        )
    check_structure("deltas", deltas, "params", params)
    check_arrays("deltas", deltas)
    if [jnp.shape(d) for d in jax.tree.leaves(deltas)] == [jnp.shape(p) for p in jax.tree.leaves(params)] != []:
        one = "also one client's, jax.tree.map(lambda leaf: leaf[None], delta)"
        raise ValueError(f"deltas: have the shapes of params; must have a leading client axis [S], {one}")
    size = cohort_size(deltas)
    for (path, p), d in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(deltas), strict=True):
        if jnp.shape(d)[1:] != jnp.shape(p):
            expected = ", ".join(["S", *map(str, jnp.shape(p))])
            where = f"deltas{jax.tree_util.keystr(path)}"
            raise ValueError(f"{where} with shape {jnp.shape(d)}: must be [{expected}], S clients on a leading axis")
    return size


def _are_separate(params: Params, deltas: Any) -> bool:
    """Whether deltas are those of the clients one after another, instead of a stack."""
    structure = jax.tree.structure(params)
    if not isinstance(deltas, list | tuple) or jax.tree.structure(deltas) == structure:
        return False
    return bool(deltas) and all(jax.tree.structure(delta) == structure for delta in deltas)


def check_arrays(name: str, tree: Any) -> None:
    """Raises ValueError unless every leaf is a floating JAX or NumPy array, or a plain float."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        where, kind = f"{name}{jax.tree_util.keystr(path)}", type(leaf)
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | float):
            whose = kind.__module__.partition(".")[0]
            remedy = "; give tensor.detach().numpy()" if whose == "torch" else ""
            raise ValueError(f"{where} of type {whose}.{kind.__name__}: must be an array of JAX or NumPy{remedy}")
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"{where} of type {jnp.result_type(leaf)}: must be floating, such as float32")


def check_structure(name: str, given: Any, like_name: str, like: Any) -> None:
    """Raises ValueError, naming an entry in which they differ, unless two pytrees have the same structure."""
    if jax.tree.structure(given) == jax.tree.structure(like):
        return
    has, expected = ([jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(x)] for x in (given, like))
    lacks = [path for path in expected if path and path not in has]
    extra = [path for path in has if path and path not in expected]
    if type(given) is type(like) and (lacks or extra):
        difference = f"lacks {lacks[0]}" if lacks else f"has {extra[0]} in addition"
    else:
        difference = f"is of type {type(given).__name__}"
    raise ValueError(f"{name}: {difference}; must have the structure of {like_name}, a {type(like).__name__}")


def check_like(name: str, given: Any, like_name: str, like: Any) -> None:
    """Raises ValueError, naming an entry in which they differ, unless two pytrees have one structure and shapes."""
    check_structure(name, given, like_name, like)
    for (path, leaf), expected in zip(jax.tree.leaves_with_path(given), jax.tree.leaves(like), strict=True):
        if jnp.shape(leaf) != jnp.shape(expected):
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise ValueError(f"{where} with shape {jnp.shape(leaf)}: must be {jnp.shape(expected)}, as in {like_name}")


def check_types(name: str, given: Any, before: Any) -> None:
    """Raises ValueError unless the leaves have the types before; types that are weak may change, as JAX has it."""
    for (path, leaf), old in zip(jax.tree.leaves_with_path(given), jax.tree.leaves(before), strict=True):
        if jnp.result_type(leaf) != jnp.result_type(old) and not getattr(old, "weak_type", not hasattr(old, "dtype")):
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise ValueError(f"{where} of type {jnp.result_type(leaf)}: must stay {jnp.result_type(old)}")


def described(arrays: Any, *leading: Any) -> str:
    """Types and shapes of arrays, with ``leading`` in the place of the leading axis: ``float32[B, 10]``.

    Args:
      arrays: a pytree of arrays or shapes; of what is neither, the name of its class.
      *leading: a letter or a number, or nothing for the shape of one example.
    """

    def leaf(x: Any) -> str:
        axes = ", ".join(map(str, (*leading, *getattr(x, "shape", ())[1:])))
        return f"{x.dtype}[{axes}]" if hasattr(x, "dtype") else type(x).__name__

    return str(jax.tree.map(leaf, arrays)).replace("'", "")


def mismatch(found: Any, like: Any) -> str:
    """The first difference in structure, shapes or dtypes between a pytree and another; empty if there is none.

    Leaves may be shapes, of the class ``jax.ShapeDtypeStruct``.
    """
    if jax.tree.structure(found) != jax.tree.structure(like):
        return f"{jax.tree.structure(found)}: must be {jax.tree.structure(like)}"
    for (path, x), y in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(like), strict=True):
        now, was = (f"{np.shape(leaf)} {jnp.result_type(leaf)}" for leaf in (x, y))
        if now != was:
            name = jax.tree_util.keystr(path).lstrip(".")
            return f"{name}{name and ' with '}{now}: must be {was}"
    return ""


def check_returned(function: str, found: Any, like: Any) -> None:
    """Refuses what a function has returned that differs from ``like`` in structure, shapes or dtypes.

    Args:
      function: what the message begins with, such as ``attack: poison``.
      found: arrays or shapes.
      like: arrays or shapes.

    Raises:
      ValueError: one line with the first difference.
    """
    if difference := mismatch(found, like):
        raise ValueError(f"{function} returns {difference}")


def initial_state(apply: Any, state: State, params: Params, deltas: Deltas, **extras: Any) -> State:
    """``state`` with the shapes that ``apply`` returns.

    Per-client entries of ``state.metrics`` have length 0 after ``init``, which knows no cohort. A
    ``lax.scan`` over rounds needs the final shapes from the start, and a jitted ``apply`` is then
    compiled once. Only shapes are computed here. ``deltas`` may be ``jax.ShapeDtypeStruct`` leaves.

    Args:
      apply: ``(params, deltas, state, **extras) -> (params, state)``.
      state: what ``init`` returned.
      params: global parameters.
      deltas: a cohort's deltas, ``[S, *p]``.
      **extras: those that ``apply`` needs.

    Returns:
      ``state``, its metrics in their final shapes.

    Raises:
      ValueError: if ``apply`` changes the shape or dtype of another leaf.
    """
    static = {name: extras.pop(name) for name in STATIC_EXTRAS if name in extras}
    after = jax.eval_shape(lambda p, d, s, e: apply(p, d, s, **static, **e)[1], params, deltas, state, extras)
    jax.eval_shape(cast_like, after, state)  # whose errors say what the round has changed
    return cast_like(state, after)


def cast_like(tree: Any, shapes: Any) -> Any:
    """``tree`` with zeros for the entries of fields ``metrics`` whose shape or dtype is not that of ``shapes``.

    Raises:
      ValueError: if any other leaf differs; a state must keep its shapes and dtypes from round to round.
    """

    def leaf(path: Any, x: Any, like: Any) -> jax.Array:
        x = jnp.asarray(x)
        if x.shape == like.shape and x.dtype == like.dtype:
            return x
        if any(getattr(key, "name", None) == "metrics" for key in path):
            return jnp.zeros(like.shape, like.dtype)
        now, was = f"{x.shape} {x.dtype}", f"{like.shape} {like.dtype}"
        raise ValueError(f"state{jax.tree_util.keystr(path)} with {now}: must stay {was} in every round")

    check_structure("state after a round", tree, "the state before", shapes)
    return jax.tree_util.tree_map_with_path(leaf, tree, shapes)
