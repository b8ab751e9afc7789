"""Where the parameters come from that a run is given: a pytree, a safetensors file or a checkpoint."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jax

from fedjax_drag import checks
from fedjax_drag.simulation.devices.processes import checksum
from fedjax_drag.simulation.model.forms import variables_of
from fedjax_drag.simulation.model.model import Statistics
from fedjax_drag.simulation.model.start import Start, fitted, named
from fedjax_drag.simulation.run import RunState
from fedjax_drag.types import Params

NAME = "initial_params"

CHECKPOINTS, STATE, CHECKSUM = "checkpoints", "default", "checksum"
"""Of a results folder its checkpoints; of a checkpoint the folder of its state, and the name of the checksum there."""

_VARIABLES = {"params.": "params.", "model.frozen.": "params.", "model.statistics.": ""}
"""Where the fields of a state in a checkpoint, by the beginnings of their names, are among a model's variables."""

_LONGEST_HEADER = 100_000_000
"""Bytes of a safetensors file before its arrays; the package itself reads no more."""

_ALONE = "params"
"""The name in a checkpoint of parameters that are a single array."""


def given(value: Any, like: RunState, model: Any = None) -> Start | None:
    """What a run starts from, as arrays on the host; None to draw it.

    Args:
      value: of the option ``initial_params``.
      like: shapes of the run's state.
      model: of the user; an nnx module has parameters and statistics from which a run starts that is given none.

    Raises:
      ValueError: one line that names the file that cannot be read, or the first leaf that differs from the model's.
    """
    own = variables_of(model)
    if value is None:
        return None if own is None else _split(*own, like)
    start = _read(value, like)
    if own is not None and start.statistics is None:
        start = start._replace(statistics=own[1])
    return start


def _split(params: Params, statistics: Statistics, like: RunState) -> Start:
    """A model's own variables, its parameters divided as the run's are."""
    frozen = like.model.frozen
    if isinstance(frozen, tuple) and not frozen:
        return Start(params, (), statistics)
    take = lambda part: jax.tree.map(lambda leaf, own: None if leaf is None else own, part, params, is_leaf=_is_none)
    return Start(take(like.params), take(frozen), statistics)


def _is_none(node: Any) -> bool:
    return node is None


def _read(value: Any, like: RunState) -> Start:
    if not isinstance(value, str | os.PathLike):
        return fitted(NAME, named(value), like.params, like.model)
    return fitted(f"{NAME}={str(value)!r}", named(stored(value)), like.params, like.model)


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
        with path.open("rb") as stream:
            header = stream.read(min(int.from_bytes(stream.read(8), "little"), _LONGEST_HEADER))
        json.loads(header, object_pairs_hook=_no_name_twice)
        return load_file(path)
    except Exception as error:  # the package has exceptions of its own
        allowed = "must be a safetensors file, a results folder or one of its checkpoints"
        raise ValueError(f"{where}: {allowed} ({checks.first_line(error)})") from error


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; safetensors itself takes the last of two arrays of a name."""
    if twice := [name for name, number in Counter(name for name, _ in pairs).items() if number > 1]:
        raise ValueError(f"has {twice[0]} twice")
    return dict(pairs)


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
