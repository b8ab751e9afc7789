"""Parts of the user's own in a configuration: Python objects, and references to code.

Where a configuration has the name of a component, it may have instead

* a Python object: the part itself (a rule, an attack, a model, a data set, ...), or under ``name`` a builder of it, to
  which the other entries are arguments. It goes through the configuration as an :class:`OwnName`;
* a *reference*: ``my_rules.py:my_rule``, also written ``{path: my_rules.py, name: my_rule}``, which names something in
  a file, or ``my_package.module:my_rule``, something in an installed module.
  :mod:`fedjax_drag.experiment.build.own_parts` loads it.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.files import sha256

# JAX is imported where a Python object is: a mistake in a file is told without it.

PYTHON = "python:"
"""What the name of a part given as a Python object begins with."""

_REFERENCE = re.compile(r"(?P<place>[^:]+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_][\w.]*)")


class OwnName(str):
    """The name of a part that was given as a Python object, ``python:LABEL``.

    A results folder keeps the text alone; in the process, the name leads to the object.

    Attributes:
      part: the object, or a builder of it.
    """

    part: Any

    def __new__(cls, label: str, part: Any) -> "OwnName":
        """The name of an object."""
        name = super().__new__(cls, f"{PYTHON}{label}")
        name.part = part
        return name

    def __deepcopy__(self, memo: dict[int, Any]) -> "OwnName":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnName, (short(self), self.part)


def with_own_names(value: Any, where: str = "") -> Any:
    """A configuration in which every Python object is a component with an :class:`OwnName`.

    Args:
      value: a mapping, a list or a value of a configuration, to any depth.
      where: its dotted key, for errors.

    Returns:
      The same with plain values and own names only, and references in one form.

    Raises:
      ValueError: a label is not a text.
    """
    if isinstance(value, Mapping):
        return _with_own_names(value, where)
    if type(value) in (str, bool, int, float, type(None)):
        return value
    if where.rpartition(".")[2] == "model" and _is_pair(value):
        return {"name": OwnName(_label(value[1]), value)}
    if _is_list(value):
        return [with_own_names(entry, where) for entry in value]
    if _is_number(value):
        return value.item()
    if _is_plain(value):
        return value
    return {"name": OwnName(_label(value), value)}


def as_text(value: Any) -> Any:
    """A configuration of which every own name is its text, as files hold it."""
    return _with(str, value)


def as_parts(value: Any) -> Any:
    """The same of which every own name is the object that it stands for."""
    return _with(lambda name: name.part, value)


def _with(function: Callable[[OwnName], Any], value: Any) -> Any:
    """A configuration in which ``function`` of an own name stands in its place, to any depth."""
    if isinstance(value, Mapping):
        return {key: _with(function, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with(function, entry) for entry in value]
    return function(value) if isinstance(value, OwnName) else value


def is_reference(name: str) -> bool:
    """Whether a component's name refers to code."""
    return not name.startswith(PYTHON) and _REFERENCE.fullmatch(name) is not None


def is_own(name: str) -> bool:
    """Whether a component's name stands for a part of the user's own."""
    return name.startswith(PYTHON) or is_reference(name)


def references(value: Any) -> Iterator[str]:
    """The references to code in a configuration, to any depth."""
    return (text for text in texts(value) if is_reference(text))


def own_names(value: Any) -> Iterator[OwnName]:
    """The names of Python objects in a configuration, to any depth."""
    return (text for text in texts(value) if isinstance(text, OwnName))


def place_and_name(reference: str) -> tuple[str, str]:
    """The file or module of a reference, and the name in it."""
    match = _REFERENCE.fullmatch(reference)
    assert match is not None
    return match["place"], match["name"]


def checksums(references: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the files that references name, by path; of modules none, since finding one may import others."""
    paths = {place_and_name(reference)[0] for reference in references}
    files = [path for path in sorted(paths) if path.endswith(".py") and Path(path).is_file()]
    return {path: sha256(Path(path)) for path in files}


def short(name: str) -> str:
    """A component's name for tables and plots: of a part of the user's own, what follows the colon."""
    return name.rpartition(":")[2] if is_own(name) else name


def texts(value: Any) -> Iterator[str]:
    """All texts in a configuration, to any depth."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from texts(entry)
    elif isinstance(value, str):
        yield value


def _with_own_names(mapping: Mapping[Any, Any], where: str) -> dict[str, Any]:
    own = {str(key): value for key, value in mapping.items()}
    inner = f"{where}." if where else ""
    name = own.get("name")
    if where and isinstance(own.get("path"), str) and isinstance(name, str):
        own = {"name": f"{own['path']}:{name}"} | {k: v for k, v in own.items() if k not in ("name", "path")}
    elif not (_is_plain(name) or _is_list(name) or isinstance(name, Mapping)):
        label = own.pop("label", None) or _label(name)
        if not isinstance(label, str):
            raise ValueError(f"{inner}label={label!r}: must be a text")
        own["name"] = OwnName(label, name)
    return {key: with_own_names(value, f"{inner}{key}") for key, value in own.items()}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or True or False, of NumPy or JAX."""
    import jax
    import jax.numpy as jnp

    is_scalar = isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0
    return is_scalar and (jnp.issubdtype(value.dtype, np.number) or value.dtype == bool)


def _is_list(value: Any) -> bool:
    """Whether a value is a list, and no named tuple, as rules are."""
    return isinstance(value, list | range) or (isinstance(value, tuple) and not hasattr(value, "_fields"))


def _is_pair(value: Any) -> bool:
    """Whether a value is a model as a pair of functions ``(init, apply)``."""
    return isinstance(value, tuple) and len(value) == 2 and all(callable(part) for part in value)


def _label(part: Any) -> str:
    """What a Python object is called: a function's name, that of the builder of a rule or an attack, or its class's."""
    from fedjax_drag.types import Aggregator, Algorithm, Attack, ClientRule

    if isinstance(part, Aggregator | Algorithm | Attack | ClientRule):
        return part.name
    named = getattr(part, "update", part) if hasattr(part, "_fields") else part  # an optimizer
    named = named.func if isinstance(named, functools.partial) else named
    name = getattr(named, "__qualname__", None) or getattr(part, "name", None) or type(part).__name__
    return str(name).partition(".<locals>")[0].rpartition(".")[2].strip("<>")
