"""What a model sees of the stored inputs: standardised, scaled to [0, 1], or the numbers as they are.

Each is a pair of numbers, or of tuples with one number for each entry of the last input axis: what is subtracted from
inputs, and what they are divided by after that. Both are of bytes divided by 255, and of floating numbers as stored.
"""

from typing import Literal, get_args

import numpy as np

from fedjax_drag import checks

Normalize = Literal["standard", "unit", "none"]
NORMALIZE: tuple[str, ...] = get_args(Normalize)

TOKENS = (np.int8, np.int32)
"""Types of inputs that are categories, such as numbered characters."""

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def statistics(x: np.ndarray, normalize: Normalize = "standard") -> Statistics:
    """What to subtract from inputs and to divide them by.

    Args:
      x: training inputs ``[N, ...]``: uint8, floating, int8 or int32.
      normalize: ``"standard"``, mean 0 and variance 1 of each entry of the last axis, where a constant entry is divided
        by 1. ``"unit"``, in [0, 1]: bytes are divided by 255; floating inputs that are in [0, 1] already stay, of
        others each entry of the last axis is scaled by its smallest and largest value. ``"none"``: bytes 0 to 255 (up
        to the rounding of float32), floating inputs as they are.

    Returns:
      The mean, or its counterpart, and the positive divisor.

    Raises:
      ValueError: an unknown ``normalize``, or one other than ``"standard"`` for tokens, which stay as they are.
    """
    checks.one_of("normalize", normalize, NORMALIZE)
    if x.dtype in TOKENS:
        if normalize != "standard":
            raise ValueError(f"normalize={normalize!r}: must be 'standard' for tokens, which are not scaled")
        return (0.0,), (1.0,)
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    if normalize == "none":
        return (0.0,), (1.0 / scale,)
    if normalize == "standard":
        return _standard(x, scale)
    return ((0.0,), (1.0,)) if x.dtype == np.uint8 else _unit(x)


def _standard(x: np.ndarray, scale: float) -> Statistics:
    axes = tuple(range(x.ndim - 1))
    mean, std = x.mean(axes, dtype=np.float64) / scale, x.std(axes, dtype=np.float64) / scale
    std[std <= 1e-6 * np.abs(mean)] = 1.0  # a constant, up to rounding
    std[std == 0] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _unit(x: np.ndarray) -> Statistics:
    axes = tuple(range(x.ndim - 1))
    low, high = x.min(axes).astype(np.float64), x.max(axes).astype(np.float64)
    if low.min() >= 0 and high.max() <= 1:
        return (0.0,), (1.0,)
    span = high - low
    span[span < np.finfo(np.float32).tiny] = 1.0  # a constant, also for programs that take subnormal numbers as 0
    return tuple(low.tolist()), tuple(span.tolist())
