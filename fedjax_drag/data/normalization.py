"""What a model sees of the stored inputs: standardised, scaled to [0, 1], or the numbers as they are.

Each is a pair of numbers, or of tuples with one number for each entry of the last input axis: what is subtracted from
inputs, and what they are divided by after that. Both are of bytes divided by 255, and of floating numbers as stored.
"""

import warnings
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks

Normalize = Literal["standard", "unit", "none"]
NORMALIZE: tuple[str, ...] = get_args(Normalize)

TOKENS = (np.int8, np.int32)
"""Types of inputs that are categories, such as numbered characters."""

UNSCALED = (np.bool_, *TOKENS)
"""Types of inputs that are no quantities."""

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


class Preprocess(NamedTuple):
    """From stored inputs to a model's inputs.

    Attributes:
      mean: what is subtracted.
      std: what is divided by after that.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Any) -> Any:
        """Of each array ``(x / 255 - mean) / std`` if uint8, ``(x - mean) / std`` if floating; tokens become int32."""
        return jax.tree.map(self._of_array, x)

    def _of_array(self, x: jax.Array | np.ndarray) -> jax.Array:
        if x.dtype in UNSCALED:
            return jnp.asarray(x, jnp.int32 if x.dtype in TOKENS else bool)
        scale = 255.0 if x.dtype == np.uint8 else 1.0
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        return (jnp.asarray(x, jnp.float32) / scale - mean) / std


_ROUNDING = 0.01
"""Largest rounding error of float32 with which inputs are stored as given, as a share of their standard deviation."""

_MOST_NAMED = 5  # entries in a warning


def statistics(x: np.ndarray, normalize: Normalize = "standard") -> Statistics:
    """What to subtract from inputs and to divide them by.

    Args:
      x: training inputs ``[N, ...]``: uint8, floating, int8 or int32.
      normalize: ``"standard"``, mean 0 and variance 1 of each entry of the last axis, where an entry that is constant
        up to the rounding of its type, or varies by subnormal numbers of float32 alone, is divided by 1. ``"unit"``, in
        [0, 1]: bytes are divided by 255; floating inputs that are in [0, 1] already stay, of others each entry of the
        last axis is scaled by its smallest and largest value. ``"none"``: bytes 0 to 255 (up to the rounding of
        float32), floating inputs as they are.

    Returns:
      The mean, or its counterpart, and the positive divisor.

    Raises:
      ValueError: an unknown ``normalize``, or one other than ``"standard"`` for tokens, which stay as they are.
    """
    checks.one_of("normalize", normalize, NORMALIZE)
    if x.dtype in UNSCALED:
        if normalize != "standard":
            raise checks.ArgumentError(
                "normalize", "must be 'standard' for tokens, which are not scaled", given=normalize
            )
        return (0.0,), (1.0,)
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    if normalize == "none":
        return (0.0,), (1.0 / scale,)
    if normalize == "standard":
        return _standard(x, scale)
    return ((0.0,), (1.0,)) if x.dtype == np.uint8 else _unit(x)


def stored(name: str, train: np.ndarray, test: np.ndarray, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, ...]:
    """Floating inputs as float32, with the mean and std that belong to them.

    Where float32 would round an entry of the last axis, such as a time in seconds since 1970, by more than a hundredth
    of its standard deviation, that entry is centred and scaled in float64 before it is stored, with a warning.

    Other inputs stay as they are.

    Args:
      name: of the training inputs in the warning.
      train: ``[N, ..., F]``, finite in float32 if floating.
      test: ``[N', ..., F]``.
      mean: ``[F]`` or ``[1]``.
      std: as ``mean``.

    Returns:
      Train, test, mean and std: ``(x - mean) / std`` is that of the arguments. Mean is 0 and std 1 for entries that are
      scaled already.
    """
    if not np.issubdtype(train.dtype, np.floating):
        return train, test, mean, std
    rounded = _rounded(train)
    inputs = [x.astype(np.float32, copy=bool(len(rounded))) for x in (train, test)]
    if not len(rounded):
        return *inputs, mean, std
    mean, std = (np.broadcast_to(value, train.shape[-1:]).astype(np.float64) for value in (mean, std))
    for x, original in zip(inputs, (train, test), strict=True):
        x[..., rounded] = (original[..., rounded].astype(np.float64) - mean[rounded]) / std[rounded]
    unscaled = (mean[rounded] == 0).all() and (std[rounded] == 1).all()
    mean[rounded], std[rounded] = 0.0, 1.0
    named = ", ".join(map(str, rounded[:_MOST_NAMED])) + (", ..." if len(rounded) > _MOST_NAMED else "")
    remedy = (
        "it rounds them: centre and scale them before"
        if unscaled
        else "they are stored as (x - mean) / std; do the same to other inputs of the model"
    )
    if _narrow(train):
        remedy = f"{train.dtype} has rounded them already: give float64"
    warnings.warn(f"{name}: entries {named} of the last axis vary too little for float32; {remedy}", stacklevel=3)
    return *inputs, mean, std


def _rounded(x: np.ndarray) -> np.ndarray:
    """The entries of the last axis that vary, and that float32 rounds too coarsely."""
    x = x.reshape(len(x), -1) if x.ndim < 2 else x  # a number for each example
    low, spread = _range(x)
    varies = spread > 0 if _narrow(x) else ~_constant(x, low, spread)
    least = np.maximum(np.abs(low), np.abs(low + spread)) * np.finfo(np.float32).eps / 2 / _ROUNDING
    suspicious = varies & (spread / np.sqrt(2 * x.size / x.shape[-1]) < least)  # a bound of std, which takes long
    return np.array([e for e in np.flatnonzero(suspicious) if x[..., e].std(dtype=np.float64) < least[e]], int)


def _narrow(x: np.ndarray) -> bool:
    return x.dtype.itemsize <= 4


def _standard(x: np.ndarray, scale: float) -> Statistics:
    axes = tuple(range(x.ndim - 1))
    mean, std = x.mean(axes, dtype=np.float64) / scale, x.std(axes, dtype=np.float64) / scale
    std[_constant(x, *_range(x)) | (std < np.finfo(np.float32).tiny)] = 1.0  # programs take subnormal numbers as 0
    return tuple(mean.tolist()), tuple(std.tolist())


def _range(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest value of each entry of the last axis, and how far the largest is above it, in float64."""
    axes = tuple(range(x.ndim - 2))
    low, high = x.min(0).min(axes).astype(np.float64), x.max(0).max(axes).astype(np.float64)  # in two steps: faster
    return low, high - low


def _constant(x: np.ndarray, low: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Which entries of the last axis are constant up to the rounding of their type."""
    return spread <= 2 * (np.finfo(x.dtype).eps if np.issubdtype(x.dtype, np.floating) else 0) * np.abs(low)


def _unit(x: np.ndarray) -> Statistics:
    low, span = _range(x)
    if low.min() >= 0 and (low + span).max() <= 1:
        return (0.0,), (1.0,)
    span[span < np.finfo(np.float32).tiny] = 1.0
    return tuple(low.tolist()), tuple(span.tolist())
