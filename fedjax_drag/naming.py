"""Names of parts that are made of a user's functions: those of the functions that made these."""

from typing import Any


def name_of(function: Any) -> str:
    """The name of the function in which another is defined, such as ``drag`` of ``drag.<locals>.apply``."""
    owner = getattr(function, "__self__", None)
    if owner is not None and hasattr(owner, "name"):  # a method of a part
        return owner.name
    path = getattr(function, "__qualname__", type(function).__name__)
    return path.split(".<locals>.")[-2:][0].rpartition(".")[2]
