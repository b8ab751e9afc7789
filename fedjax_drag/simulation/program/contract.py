"""What a method promises, checked once while the first state is traced."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.types import EXTRAS, Algorithm, Downlink, Params, State


def check_method(algorithm: Algorithm, num_clients: int, cohort_size: int, params: Params, state: State) -> None:
    """Refuses a method that asks for what no run has, or returns other shapes, which might broadcast without a word.

    Args:
      algorithm: the method.
      num_clients: M.
      cohort_size: S.
      params: the initial parameters.
      state: of the method, before the first round.

    Raises:
      ValueError: one line that says what is allowed.
    """
    for name in sorted(algorithm.needs):
        checks.one_of(f"algorithm={algorithm.name}: needs", name, EXTRAS)
    checks.one_of(f"algorithm={algorithm.name}: split", algorithm.split, ("clients", "coordinates"))
    ids = jax.ShapeDtypeStruct((cohort_size,), jnp.int32)
    _check_downlink(jax.eval_shape(_broadcast(algorithm), params, state, ids), cohort_size, params)
    if algorithm.eligible is not None:
        found = jax.eval_shape(algorithm.eligible, state)
        if getattr(found, "shape", None) != (num_clients,) or found.dtype != bool:
            raise ValueError(f"eligible of the method: returns {_shown(found)}; must return bool[{num_clients}]")
    if algorithm.output is not None:
        _check_params("output of the method", jax.eval_shape(algorithm.output, params, state), params)


def _broadcast(algorithm: Algorithm) -> Any:
    """``broadcast`` of all clients' state, which hands it the rows of its clients."""
    return lambda params, state, ids: algorithm.broadcast(params, per_client.gather(state, ids), ids)


def _check_downlink(downlink: Any, cohort_size: int, params: Params) -> None:
    if not isinstance(downlink, Downlink):
        raise ValueError(f"broadcast of the method: returns a {type(downlink).__name__}; must return a Downlink")
    _check_params("start of the downlink", downlink.start, params)
    for path, leaf in jax.tree.leaves_with_path(downlink.own):
        if leaf.shape[:1] != (cohort_size,):
            where = f"own of the downlink{jax.tree_util.keystr(path)}"
            raise ValueError(f"{where} with shape {leaf.shape}: must have one entry for each of {cohort_size} clients")


def _check_params(name: str, found: Any, params: Params) -> None:
    tree.check_like(name, found, "the parameters", params)
    tree.check_types(name, found, params)


def _shown(found: Any) -> str:
    return f"{found.dtype}{list(found.shape)}" if hasattr(found, "dtype") else f"a {type(found).__name__}"
