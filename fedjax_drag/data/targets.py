"""Targets of one's own arrays, and how many classes they have."""

import warnings
from typing import Any

import numpy as np

from fedjax_drag.checks import ArgumentError

_FEW_CLASSES, _MOST_INFERRED = 100, 1_000_000
"""Numbers of classes of which most may be empty without a warning, and without an error."""


def finite32(name: str, x: np.ndarray) -> np.ndarray:
    """``x`` as float32.

    Raises:
      ValueError: one line that says how many entries are not finite there, and which is the first.
    """
    with np.errstate(over="ignore"):  # a number too large for float32 is reported as not finite
        narrow = x.astype(np.float32, copy=False)
    if not np.isfinite(narrow).all():
        places = np.argwhere(~np.isfinite(narrow))
        wrong = f"{len(places)} entries are not finite float32 numbers, the first {places[0].tolist()}"
        raise ValueError(f"{name}: {wrong}={x[tuple(places[0])]}; all must be")
    return narrow


def stored(name: str, y: np.ndarray) -> np.ndarray:
    """Targets as int32 or float32.

    Raises:
      ValueError: one line that names what is no such number.
    """
    if np.issubdtype(y.dtype, np.floating):
        return finite32(name, y)
    if y.dtype != bool and not np.issubdtype(y.dtype, np.integer):
        raise ArgumentError(name, f"of type {y.dtype}: must be integers or floating; number the classes from 0")
    if not y.size:
        return y.astype(np.int32)
    low = np.iinfo(np.int32).min if y.ndim > 1 else 0
    if y.min() < low or y.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{name}: labels from {y.min()} to {y.max()}: must be >= 0 and fit 32 bits")
    return y.astype(np.int32)


def number_of_classes(*targets: Any) -> int:
    """The largest integer plus one, 0 for targets that are no classes; a warning or an error where most are empty."""
    if not all(isinstance(y, np.ndarray) for y in targets):  # several arrays
        return 0
    if any(np.issubdtype(y.dtype, np.floating) for y in targets) or all(map(_are_several_labels, targets)):
        return 0
    number = max(int(y.max()) for y in targets) + 1
    used = len(np.unique(np.concatenate([y.reshape(-1) for y in targets])))
    if number <= max(_FEW_CLASSES, 2 * used):
        return number
    message = (
        f"train_y, test_y: {number:,} classes, of which {used:,} have examples; number the classes from 0, as "
        "np.unique(y, return_inverse=True)[1] of all labels does, or give num_classes"
    )
    if number > _MOST_INFERRED:
        raise ValueError(message)
    warnings.warn(message, stacklevel=3)
    return number


def _are_several_labels(y: np.ndarray) -> bool:
    """Whether targets ``[N, K]`` say of each label whether an example has it."""
    return y.ndim == 2 and bool(((y == 0) | (y == 1)).all())
