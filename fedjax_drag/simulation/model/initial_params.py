"""What a model starts from where that is given: a pytree, a safetensors file or a checkpoint.

Arrays are matched by name with the model's own.
"""

import os
from collections.abc import Mapping, Set
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.models.lora import ADAPTERS
from fedjax_drag.ops.paths import joined, path_of
from fedjax_drag.simulation.devices.processes import checksum
from fedjax_drag.simulation.model.forms import variables_of
from fedjax_drag.simulation.model.model import Model, ModelState, Statistics
from fedjax_drag.types import Params


class Start(NamedTuple):
    """What a model starts from.

    Attributes:
      params: the trained parameters; None for one that is drawn.
      frozen: the others, as in :class:`~fedjax_drag.simulation.model.model.ModelState`; None for one that is drawn.
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
    statistics = state.statistics if start.statistics is None else start.statistics
    return joined(start.params, params), ModelState(joined(start.frozen, state.frozen), statistics)


def fitted(where: str, found: Mapping[str, Any], params: Params, state: ModelState) -> Start:
    """The start that arrays by name are, in the structure and the dtypes of the model's own.

    Args:
      where: what the message of an error begins with.
      found: arrays by :func:`named`. Parameters may be below ``params``, as in the variables of a linen module;
        statistics are there all or not at all, and so are the adapters of :func:`~fedjax_drag.models.lora`.
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
    adapters = {name for name in wanted if fnmatchcase(name, ADAPTERS)}
    drawn = adapters if adapters.isdisjoint(found) else set[str]()
    filled = [_arrays_for(where, found, part, drawn) for part in needed]
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


def _arrays_for(
    where: str, found: Mapping[str, Any], wanted: Mapping[str, Any], drawn: Set[str]
) -> list[np.ndarray | None]:
    """The arrays ``found`` for the leaves ``wanted``, on the host; None for those that are ``drawn``."""
    arrays: list[np.ndarray | None] = []
    for name, own in wanted.items():
        if name in drawn:
            arrays.append(None)
            continue
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


NAME = "initial_params"

CHECKPOINTS, STATE, CHECKSUM = "checkpoints", "default", "checksum"
"""Of a results folder its checkpoints; of a checkpoint the folder of its state, and the name of the checksum there."""

_VARIABLES = {"params.": "params.", "model.frozen.": "params.", "model.statistics.": ""}
"""Where the fields of a state in a checkpoint, by the beginnings of their names, are among a model's variables."""

_ALONE = "params"
"""The name in a checkpoint of parameters that are a single array."""


def given(value: Any, like: Any, model: Any = None) -> Start | None:
    """What a run starts from, as arrays on the host; None to draw it.

    Args:
      value: of the option ``initial_params``.
      like: shapes of the run's :class:`~fedjax_drag.simulation.run.RunState`.
      model: of the user; an nnx module has parameters and statistics from which a run starts that is given none.

    Raises:
      ValueError: one line that names the file that cannot be read, or the first leaf that differs from the model's.
    """
    own = variables_of(model)
    if value is None:
        return None if own is None else _split(*own, like)
    where, found = NAME, value
    if isinstance(value, str | os.PathLike):
        where, found = f"{NAME}={str(value)!r}", stored(value)
    start = fitted(where, named(found), like.params, like.model)
    if own is not None and start.statistics is None:
        start = start._replace(statistics=own[1])
    return start


def _split(params: Params, statistics: Statistics, like: Any) -> Start:
    """A model's own variables, its parameters divided as the run's are."""
    frozen = like.model.frozen
    if isinstance(frozen, tuple) and not frozen:
        return Start(params, (), statistics)
    is_none = lambda node: node is None
    take = lambda part: jax.tree.map(lambda leaf, own: None if leaf is None else own, part, params, is_leaf=is_none)
    return Start(take(like.params), take(frozen), statistics)


def stored(value: str | os.PathLike[str]) -> dict[str, Any]:
    """The variables in a safetensors file, a checkpoint, or the newest checkpoint of a results folder.

    Raises:
      ValueError: one line that names the file that is not there, or cannot be read.
    """
    path, where = located(value), f"{NAME}={str(value)!r}"
    return _of_checkpoint(where, path) if path.is_dir() else _of_safetensors(where, path)


def located(path: str | os.PathLike[str]) -> Path:
    """The file, or the folder of the checkpoint, that ``path`` stands for: of a results folder the newest checkpoint.

    Raises:
      ValueError: there is no such file, or a folder without a checkpoint.
    """
    place, where = Path(path), f"{NAME}={str(path)!r}"
    if place.is_file() or (place / STATE).is_dir():
        return place
    if not place.is_dir():
        raise ValueError(f"{where}: no such file or folder in {str(Path.cwd())!r}")
    names = [inner.parent.name for inner in place.glob(f"{CHECKPOINTS}/*/{STATE}")]
    rounds = [int(name) for name in names if name.isdecimal()]
    if not rounds:
        raise ValueError(f"{where}: a folder without a checkpoint; must be a results folder or one of its checkpoints")
    return place / CHECKPOINTS / str(max(rounds))


def _of_safetensors(where: str, path: Path) -> dict[str, Any]:
    """The arrays of a safetensors file by name."""
    try:
        from safetensors.numpy import load_file
    except ImportError:
        raise ValueError(f"{where}: needs safetensors; pip install 'fedjax-drag[safetensors]'") from None
    try:
        return load_file(path)
    except Exception as error:  # the package has exceptions of its own
        allowed = "must be a safetensors file, a results folder or one of its checkpoints"
        raise ValueError(f"{where}: {allowed} ({checks.first_line(error)})") from error


def _of_checkpoint(where: str, path: Path) -> dict[str, Any]:
    """The variables of a model in a checkpoint, as nested dicts."""
    import orbax.checkpoint as ocp  # imported here: slow, and few runs need it

    try:
        with ocp.StandardCheckpointer() as reader:
            stored = dict(reader.restore((path / STATE).absolute()))
    except Exception as error:  # Orbax and TensorStore raise many kinds
        raise ValueError(f"{where}: checkpoint {path.name} cannot be read: {checks.first_line(error)}") from error
    if CHECKSUM in stored and int(stored.pop(CHECKSUM)) != checksum(stored):
        raise ValueError(f"{where}: checkpoint {path.name} is damaged: does not match its checksum")
    return variables_in(stored)


def leaf_name(path: Any) -> str:
    """The name of a leaf in a checkpoint: its path, the parts joined by dots; a dot in a part is written ``%2E``.

    A path of a single part is a name already.
    """
    parts = [jax.tree_util.keystr((part,), simple=True) for part in path]
    if len(parts) == 1:
        return parts[0]
    return ".".join(part.replace("%", "%25").replace(".", "%2E") for part in parts)


def variables_in(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A model's variables, as nested dicts, among the leaves of a stored state by :func:`leaf_name`."""
    from flax.traverse_util import unflatten_dict

    if _ALONE in stored:
        return {_ALONE: stored[_ALONE]}
    found = {
        collection + name.removeprefix(beginning): leaf
        for name, leaf in stored.items()
        for beginning, collection in _VARIABLES.items()
        if name.startswith(beginning)
    }
    return unflatten_dict({tuple(map(unquote, name.split("."))): leaf for name, leaf in found.items()})
