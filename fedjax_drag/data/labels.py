"""Labels of one's own arrays: one class for each example."""

import warnings

import numpy as np

from fedjax_drag.checks import ArgumentError

SCOPE = "only classification with one label an example is supported"

_FEW_CLASSES, _MOST_INFERRED = 100, 1_000_000
"""Numbers of classes of which most may be empty without a warning, and without an error."""


def number_of_classes(*labels: np.ndarray) -> int:
    """The largest label plus one; a warning or an error where there are many classes, and most are empty."""
    number = max(int(y.max()) for y in labels) + 1
    used = len(np.unique(np.concatenate(labels)))
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


def check(name: str, y: np.ndarray, number: int) -> None:
    """Refuses what are no integer labels, one for each of so many examples."""
    several = y.ndim > 1 and len(y) == number
    if several and y.ndim == 2 and y.shape[1] > 1 and ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all():
        raise ArgumentError(name, f"of shape {y.shape}, one-hot: must be integers [N]; take {name}.argmax(1)")
    if several:
        remedy = f"; take {name}[:, 0]" if y.shape == (number, 1) else ""
        raise ArgumentError(name, f"of shape {y.shape}: must be integers [N]{remedy}; {SCOPE}")
    if not np.issubdtype(y.dtype, np.integer):
        whole = y.dtype == bool or (np.issubdtype(y.dtype, np.floating) and (y == np.round(y)).all())
        remedy = f"; take {name}.astype(int)" if whole else f", the numbers of classes from 0; {SCOPE}"
        raise ArgumentError(name, f"of type {y.dtype}: must be integers{remedy}")
