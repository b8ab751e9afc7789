"""Checks that a method asks for what runs have and returns the shapes that they need."""

import functools
from typing import Any

import jax

from fedjax_drag import checks, tree
from fedjax_drag.simulation.program.programs import first_downlink
from fedjax_drag.types import EXTRAS, Algorithm, Downlink, Params


def check_method(algorithm: Algorithm, num_clients: int, cohort_size: int, params: Params) -> None:
    """Refuses a method that asks for what no run has, or returns other shapes, which might broadcast without a word.

    Args:
      algorithm: the method.
      num_clients: M.
      cohort_size: S.
      params: the initial parameters, arrays or shapes.

    Raises:
      ValueError: one line that says what is allowed.
    """
    for name in sorted(algorithm.needs):
        checks.one_of(f"algorithm={algorithm.name}: needs", name, EXTRAS)
    checks.one_of(f"algorithm={algorithm.name}: split", algorithm.split, ("clients", "coordinates"))
    state = jax.eval_shape(algorithm.init, params)
    downlink = jax.eval_shape(functools.partial(first_downlink, algorithm, cohort_size), params, state)
    _check_downlink(downlink, cohort_size, params)
    if algorithm.eligible is not None:
        found = jax.eval_shape(algorithm.eligible, state)
        if difference := tree.unlike(found, jax.ShapeDtypeStruct((num_clients,), bool)):
            raise ValueError(f"eligible of the method: returns {difference}")
    if algorithm.output is not None:
        _check_params("output of the method", jax.eval_shape(algorithm.output, params, state), params)


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
