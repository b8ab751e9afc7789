"""JAX's error about a NaN, with the rounds in which it occurred."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def located(first: int, last: int) -> Iterator[None]:
    """Adds the rounds to JAX's error about a NaN or an infinity.

    With ``jax.debug_nans`` JAX checks all that a compiled program returns, not NaNs inside it that the program masks.

    Args:
      first: round that the program begins with, from 1.
      last: round after which it returns.

    Raises:
      FloatingPointError: in place of JAX's.
    """
    try:
        yield
    except Exception as error:
        if not _is_nan_error(error):
            raise
        detail = ", ".join(map(str, error.args))
        raise FloatingPointError(f"JAX found a NaN in what rounds {first} to {last} returned ({detail})") from error


def _is_nan_error(error: Exception) -> bool:
    """Whether JAX found a NaN or an infinity.

    For a program compiled ahead of time JAX raises a class of its own, which its public modules do not export: its
    name and the package it comes from are all that identifies it.
    """
    private = type(error).__module__.startswith("jax.") and type(error).__name__ == "InternalFloatingPointError"
    return isinstance(error, FloatingPointError) or private
