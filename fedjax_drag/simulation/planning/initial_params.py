"""The parameters that a run starts from where they are given: a pytree, a safetensors file or a checkpoint."""

import hashlib
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks
from fedjax_drag.simulation.devices.processes import checksum
from fedjax_drag.types import Params

NAME = "initial_params"

CHECKPOINTS, STATE, CHECKSUM, PARAMS = "checkpoints", "default", "checksum", "params."
"""Of a results folder its checkpoints; of a checkpoint the folder of its state, the name of the checksum, and the
beginning of the names of parameters."""


def given(value: Any, like: Params) -> Params | None:
    """The parameters that a run is given, as arrays on the host in the dtypes of the model; None for none.

    Args:
      value: of the option ``initial_params``.
      like: the model's own parameters, arrays or shapes.

    Raises:
      ValueError: one line that names the file that cannot be read, or the first leaf that differs from the model's.
    """
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        return _fitted(NAME, _by_name(value), like)
    path = located(value)
    where = f"{NAME}={str(value)!r}"
    found = _of_checkpoint(where, path) if path.is_dir() else _of_safetensors(where, path)
    return _fitted(where, {_normal(name): leaf for name, leaf in found.items()}, like)


def located(path: str | os.PathLike[str]) -> Path:
    """The file, or the folder of the checkpoint, that ``path`` stands for: of a results folder the newest checkpoint.

    Raises:
      ValueError: there is no such file, or a folder without a checkpoint.
    """
    place, where = Path(path), f"{NAME}={str(path)!r}"
    if place.is_file():
        return place
    if not place.is_dir():
        raise ValueError(f"{where}: no such file or folder in {str(Path.cwd())!r}")
    if (place / STATE).is_dir():
        return place
    names = [inner.parent.name for inner in place.glob(f"{CHECKPOINTS}/*/{STATE}")]
    rounds = [int(name) for name in names if name.isdecimal()]
    if not rounds:
        raise ValueError(f"{where}: a folder without a checkpoint; must be a results folder or one of its checkpoints")
    return place / CHECKPOINTS / str(max(rounds))


def digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder."""
    files = [path] if path.is_file() else sorted(inner for inner in path.rglob("*") if inner.is_file())
    total = hashlib.sha256()
    for file in files:
        if path.is_dir():
            total.update(file.relative_to(path).as_posix().encode())
        with file.open("rb") as stream:
            while block := stream.read(2**20):
                total.update(block)
    return total.hexdigest()


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
    """The parameters of a checkpoint by name."""
    import orbax.checkpoint as ocp  # imported here: slow, and few runs need it

    try:
        with ocp.StandardCheckpointer() as reader:
            stored = dict(reader.restore((path / STATE).absolute()))
    except Exception as error:  # Orbax and TensorStore raise many kinds
        raise ValueError(f"{where}: checkpoint {path.name} cannot be read: {checks.first_line(error)}") from error
    if CHECKSUM in stored and int(stored.pop(CHECKSUM)) != checksum(stored):
        raise ValueError(f"{where}: checkpoint {path.name} is damaged: does not match its checksum")
    return {name.removeprefix(PARAMS): leaf for name, leaf in stored.items() if name.startswith(PARAMS)}


def _fitted(where: str, found: dict[str, Any], like: Params) -> Params:
    """The arrays in ``found`` arranged like the model's parameters.

    Raises:
      ValueError: names the first leaf that differs.
    """
    wanted = _by_name(like)
    if not any(name.startswith("params/") for name in wanted):  # variables as Flax's init returns them
        found = {name.removeprefix("params/"): leaf for name, leaf in found.items()}
    arrays = []
    for name, own in wanted.items():
        if name not in found:
            raise ValueError(f"{where}: has no {name}; the model has it with shape {own.shape}{_instead(found)}")
        leaf = found[name]
        if np.shape(leaf) != own.shape:
            raise ValueError(f"{where}: {name} with shape {np.shape(leaf)}: must be {own.shape}, as in the model")
        if not jnp.issubdtype(leaf.dtype, np.number) or jnp.issubdtype(leaf.dtype, np.complexfloating):
            raise ValueError(f"{where}: {name} of type {leaf.dtype}: must be real numbers")
        arrays.append(np.asarray(leaf).astype(own.dtype))
    for name in found:
        if name not in wanted:
            raise ValueError(f"{where}: has {name}, which the model has not{_instead(wanted)}")
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def _instead(names: dict[str, Any]) -> str:
    first = list(names)[:3]
    return f"; there are {', '.join(first)}{', ...' if len(names) > 3 else ''}" if first else ""


def _by_name(tree: Params) -> dict[str, Any]:
    """Leaves by the names of the path to them, joined by slashes."""
    paths = jax.tree.leaves_with_path(tree)
    return {_normal(jax.tree_util.keystr(path, simple=True, separator="/")): leaf for path, leaf in paths}


def _normal(name: str) -> str:
    """One spelling of names that some files join by dots."""
    return name.replace(".", "/")
