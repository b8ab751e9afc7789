"""The parameters, and statistics, that a model starts from where they are given, matched by name with its own."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from fedjax_drag.simulation.model.model import Model, ModelState, Statistics, path_of
from fedjax_drag.types import Params


class Start(NamedTuple):
    """What a model starts from.

    Attributes:
      params: the trained parameters.
      frozen: the others, as in :class:`~fedjax_drag.simulation.model.model.ModelState`.
      statistics: those of the model; None for those that it begins with by itself.
    """

    params: Params
    frozen: Any = ()
    statistics: Statistics | None = None


def started(model: Model, key: PRNGKeyArray, start: Start | None) -> tuple[Params, ModelState]:
    """Parameters and state of a model before the first round; drawn by ``key`` where there is no ``start``."""
    params, state = model.init(key)
    if start is None:
        return params, state
    return start.params, ModelState(start.frozen, state.statistics if start.statistics is None else start.statistics)


def fitted(where: str, found: Mapping[str, Any], params: Params, state: ModelState) -> Start:
    """The start that arrays by name are, in the structure and the dtypes of the model's own.

    Args:
      where: what the message of an error begins with.
      found: arrays by :func:`named`. Parameters may be below ``params``, as in the variables of a linen module;
        statistics are there all or not at all.
      params: of the model, arrays or shapes.
      state: of the model.

    Raises:
      ValueError: names the first leaf that differs.
    """
    parts = [params, state.frozen, state.statistics]
    own = [named(part) for part in parts]
    wanted = {name: leaf for part in own for name, leaf in part.items()}
    if "" in wanted:  # a single array
        found = {"" if name == "params" else name: leaf for name, leaf in found.items()}
    elif not any(name.startswith("params/") for name in wanted):
        found = {name.removeprefix("params/"): leaf for name, leaf in found.items()}
    without_statistics = not any(name in found for name in own[2])
    needed = own[:2] if without_statistics else own
    filled = [_filled(where, found, part) for part in needed]
    for name in found:
        if name not in wanted:
            raise ValueError(f"{where}: has {name}, which the model has not{_instead(wanted)}")
    trees = [jax.tree.unflatten(jax.tree.structure(part), arrays) for part, arrays in zip(parts, filled, strict=False)]
    return Start(*trees)


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their paths, joined by ``/``; dots in a name count as that too.

    Raises:
      ValueError: two of them have the same name then.
    """
    leaves = jax.tree.leaves_with_path(tree)
    names = [path_of(path).replace(".", "/") for path, _ in leaves]
    by_name = dict(zip(names, (leaf for _, leaf in leaves), strict=True))
    if len(by_name) < len(names):
        twice = next(name for name in by_name if names.count(name) > 1)
        raise ValueError(f"initial_params: has {twice} twice, where a dot in a name counts as /; rename one of them")
    return by_name


def _filled(where: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[np.ndarray]:
    """The arrays ``found`` for the leaves ``wanted``, on the host."""
    arrays = []
    for name, own in wanted.items():
        if name not in found:
            raise ValueError(f"{where}: has no {name}; the model has it with shape {own.shape}{_instead(found)}")
        leaf = found[name]
        if np.shape(leaf) != own.shape:
            raise ValueError(f"{where}: {name} with shape {np.shape(leaf)}: must be {own.shape}, as in the model")
        if not (jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)):
            raise ValueError(f"{where}: {name} of type {leaf.dtype}: must be real numbers")
        arrays.append(np.asarray(leaf).astype(own.dtype))
    return arrays


def _instead(names: Mapping[str, Any]) -> str:
    shown = ", ".join([*list(names)[:3], *(["..."] if len(names) > 3 else [])])
    return f"; there are {shown}" if shown else ""
