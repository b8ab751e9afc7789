"""Builders that are not in the registry: of Python objects, of code that a configuration refers to, of other packages.

Code that a configuration refers to is loaded by :class:`Code` and nowhere else.
"""

import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedjax_drag.checks import first_line, message_of
from fedjax_drag.experiment.config.components import KIND_OF
from fedjax_drag.experiment.config.own import PYTHON, OwnName, place_and_name
from fedjax_drag.files import sha256
from fedjax_drag.simulation.model.model import signature_of

Builder = Callable[..., Any]

_OF_FILE = "own_code_"
"""Beginning of the names of modules that are files which a configuration refers to."""


class Code(NamedTuple):
    """What code a configuration may refer to.

    Attributes:
      everything: whether all that it refers to is loaded.
      trusted: references that are loaded in any case: those that overrides have.
    """

    everything: bool = False
    trusted: Collection[str] = ()


def own_builder(where: str, name: str, code: Code | None, table: str, has_arguments: bool) -> Builder | None:
    """The builder of a part of the user's own.

    Args:
      where: dotted key of the component, for errors.
      name: of the component.
      code: what may be loaded; None to load nothing.
      table: the registry's table that the component belongs to.
      has_arguments: whether the configuration gives arguments to it.

    Returns:
      Makes the part; None for code when nothing is to be loaded.

    Raises:
      ValueError: the code may not be loaded, or cannot be.
    """
    if isinstance(name, OwnName):
        part = name.part
    elif code is None:
        return None
    elif name.startswith(PYTHON):
        raise ValueError(
            f"{where}.name={name!r}: was given as a Python object; must be given as one again, from Python"
        )
    elif code.everything or name in code.trusted:
        part = _load(where, name)
    else:
        remedy = "--allow-code (in Python allow_code=True), or be named by an override"
        raise ValueError(
            f"{where}.name={name!r}: is code that this configuration would run; must be allowed by {remedy}"
        )
    is_part = KIND_OF[table].is_function and callable(part) and not has_arguments and _needs_arguments(part)
    return _with_signature(part) if _makes_parts(part) and not is_part else functools.partial(_itself, part)


def modules_of_files() -> list[ModuleType]:
    """Modules that references to files have loaded; other processes cannot import them by name."""
    return [module for name, module in sys.modules.items() if name.startswith(_OF_FILE)]


@functools.cache
def installed_points(table: str) -> dict[str, EntryPoint]:
    """Entry points by which installed packages offer builders of a kind, by name."""
    return {point.name: point for point in entry_points(group=f"fedjax_drag.{KIND_OF[table].listed}")}


def load_installed(name: str, point: EntryPoint) -> Builder:
    """The builder of an entry point; its package is imported.

    Raises:
      ValueError: it cannot be.
    """
    try:
        return point.load()
    except Exception as error:
        raise ValueError(f"{name!r} of {point.value}: cannot be imported: {message_of(error)}") from error


def _load(where: str, reference: str) -> Any:
    """What a reference names.

    Raises:
      ValueError: there is no such file, module or name, or it cannot be run.
    """
    place, name = place_and_name(reference)
    path = Path(place).absolute()
    if (is_file := place.endswith(".py")) and not path.is_file():
        raise ValueError(f"{where}.path={place!r}: must be a Python file; there is none in {str(Path.cwd())!r}")
    try:
        module = _run_once(path, sha256(path)) if is_file else importlib.import_module(place)
    except Exception as error:
        what = f"{where}.path={place!r}: cannot be run" if is_file else f"{where}: module {place!r} cannot be imported"
        raise ValueError(f"{what}: {_reason(error, str(path))}") from error
    part = module
    for attribute in name.split("."):
        part = getattr(part, attribute, None)
    if part is None:
        there = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise ValueError(
            f"{where}.name={name!r}: must be one of those in {place}: {', '.join(there) or 'there is none'}"
        )
    return part


@functools.lru_cache(maxsize=64)
def _run_once(path: Path, checksum: str) -> ModuleType:
    """The module of a file, run once for all cells of a sweep; a changed file is another module."""
    spec = importlib.util.spec_from_file_location(f"{_OF_FILE}{path.stem}_{checksum[:8]}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses, and so Flax modules, look their types up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _reason(error: Exception, path: str) -> str:
    """An exception in one line, with the line of the user's file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"line {lines[-1]}: {first_line(error)}" if lines else first_line(error)


def _makes_parts(value: Any) -> bool:
    """Whether a value makes a part when it is called: a function or a class, and no part that can be called."""
    return inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, functools.partial)


def _with_signature(builder: Builder) -> Builder:
    """A builder that shows its arguments, which the metaclass of nnx modules hides."""
    own = signature_of(builder)
    if own == inspect.signature(builder):
        return builder

    @functools.wraps(builder, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        return builder(*args, **kwargs)

    make.__signature__ = own  # pyright: ignore[reportAttributeAccessIssue]
    return make


def _needs_arguments(function: Builder) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _itself(part: Any, /) -> Any:
    """The builder of a part that is there already."""
    return part
