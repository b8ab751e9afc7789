"""Names of rules, algorithms, attacks and compressors, which are tuples: those of the functions that made them."""

from typing import Any, TypeVar

Part = TypeVar("Part")


def name_of(function: Any) -> str:
    """The name of the function in which another is defined, such as ``drag`` of ``drag.<locals>.apply``."""
    owner = getattr(function, "__self__", None)
    if owner is not None and hasattr(owner, "name"):  # a method of a part
        return owner.name
    path = getattr(function, "__qualname__", type(function).__name__)
    return path.split(".<locals>.")[-2:][0].rpartition(".")[2]


def named(name: str, part: Part) -> Part:
    """A rule, an algorithm, an attack or a compressor that a helper has made, with the name that it is to have.

    Args:
      name: of the function that called the helper.
      part: an :class:`~fedjax_drag.types.Aggregator`, :class:`~fedjax_drag.types.Algorithm`,
        :class:`~fedjax_drag.types.Attack` or :class:`~fedjax_drag.compression.Compressor`.
    """
    found = (getattr(part, field, None) for field in ("apply", "aggregate", "forge", "compress"))
    next(function for function in found if function is not None).__qualname__ = name
    return part
