"""Checksums of the code of a method's parts, by which what it has computed is found again."""

import dataclasses
import functools
import hashlib
import inspect
import types
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_drag.experiment.build import registry
from fedjax_drag.experiment.config.config import flatten
from fedjax_drag.experiment.config.own import checksums, own_names, references
from fedjax_drag.files import sha256

_SESSION = uuid.uuid4().hex
_unread: list[Any] = []  # kept, so that no other object gets the place of one of them


def codes(config: Any) -> list[str]:
    """A checksum for each Python object in a configuration, and for each file that it refers to.

    Equal in all processes for parts with the same values whose functions and classes are in the same files, as a whole:
    a changed line anywhere in a file is other code. A part that cannot be read so is equal to itself alone, in this
    process.

    Args:
      config: mappings, lists and values to any depth.
    """
    files = [f"{path} {digest}" for path, digest in sorted(checksums(references(config)).items())]
    return [*(_digest(name.part) for name in own_names(config)), *files]


class PackagePart(NamedTuple):
    """A part of the package in a method.

    Attributes:
      key: what it is, such as ``"aggregator"``.
      name: in the registry.
      builder: what makes it.
      file: that the builder is in.
    """

    key: str
    name: str
    builder: Any
    file: Path


def parts_of(method: Mapping[str, Any]) -> list[PackagePart]:
    """The parts of the package that a method names, the outermost first."""
    texts = {key.removesuffix(".name"): name for key, name in flatten(method).items() if isinstance(name, str)}
    found = []
    for key, name in dict.fromkeys((key.rpartition(".")[2], name) for key, name in texts.items()):
        builder = registry.TABLES.get(key, {}).get(name)
        file = None if builder is None else inspect.getsourcefile(builder)
        if file is not None:
            found.append(PackagePart(key, name, builder, Path(file)))
    return found


def code_of(method: Mapping[str, Any]) -> str:
    """A short checksum of the files that a method's parts are in, the package's and the user's own."""
    files = {part.file.name: sha256(part.file) for part in parts_of(method)}
    return hashlib.sha256(repr([sorted(files.items()), codes(method)]).encode()).hexdigest()[:10]


def _digest(part: Any) -> str:
    try:
        return hashlib.sha256(_text(part).encode()).hexdigest()
    except (TypeError, OSError, ValueError, RecursionError):
        _unread.append(part)
        return f"unread {_SESSION} {id(part)}"


def _text(value: Any) -> str:
    """A value and the code that it refers to, as text.

    Raises:
      TypeError: it is of a kind that is not read.
      OSError: its source is not there.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(key)}: {_text(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, functools.partial):
        return f"partial({_text(value.func)}, {_text(value.args)}, {_text(value.keywords)})"
    if isinstance(value, types.MethodType):
        return f"{_text(value.__self__)}.{value.__name__}"
    if isinstance(value, type):
        return _source(value)
    if isinstance(value, types.FunctionType):
        captured = [cell.cell_contents for cell in value.__closure__ or ()]
        arguments = captured, value.__defaults__, value.__kwdefaults__
        return f"{_source(value)}:{value.__code__.co_firstlineno}{_text(arguments)}"
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{_source(type(value))}({_text(fields)})"
    raise TypeError(type(value).__name__)


def _source(code: Any) -> str:
    """The name of a function or a class, and a checksum of the file that it is in; in a notebook of its own text."""
    file = inspect.getsourcefile(code)
    text = Path(file).read_bytes() if file and Path(file).is_file() else inspect.getsource(code).encode()
    return f"{code.__module__}.{code.__qualname__} {hashlib.sha256(text).hexdigest()}"
