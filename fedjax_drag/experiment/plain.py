"""Values as JSON and as files that may hold anything have them, and lists of them in groups."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedjax_drag.files import read_json, write_text


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file as :func:`~fedjax_drag.files.write_text` does, of :func:`plain` values."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_mapping(path: Path) -> dict[str, Any]:
    """What a JSON file says; empty if it is missing or damaged, or no mapping."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, in the order in which the keys appear."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def first(texts: Sequence[str], most: int) -> list[str]:
    """The first of many, and how many more there are."""
    more = len(texts) - most
    return [*texts[:most], *([f"and {more} more"] if more > 0 else [])]


def finite(value: Any) -> float | None:
    """A number from a file that may hold anything; None if it is none or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def plain(value: Any) -> Any:
    """``value`` for JSON: arrays as lists, floats in the shortest form that reads back equal, NaN as None.

    Truth values in arrays are 0 and 1, as metrics are numbers only.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    array = np.asarray(value)
    if array.dtype == bool:
        array = array.astype(np.int32)
    if array.ndim:
        return [plain(entry) for entry in array]
    if not np.issubdtype(array.dtype, np.inexact):
        return array.item()
    number = float(str(array.astype(np.float32) if array.dtype.itemsize < 4 else array))
    return number if math.isfinite(number) else None
