"""Errors of JAX's search for NaN (``jax.debug_nans``), with the rounds that they belong to."""

from collections.abc import Iterator
from contextlib import contextmanager

from jax._src import dispatch

# Programs compiled ahead of time raise an exception that JAX does not export.
_RAISED: tuple[type[Exception], ...] = (
    FloatingPointError,
    getattr(dispatch, "InternalFloatingPointError", FloatingPointError),
)


@contextmanager
def located(first: int, last: int) -> Iterator[None]:
    """Adds the rounds to JAX's error about a NaN or an infinity.

    With ``jax.debug_nans`` JAX checks what a compiled program returns. NaN that a program computes and masks are not
    errors.

    Args:
      first: round that the program begins with, from 1.
      last: round after which it returns.

    Raises:
      FloatingPointError: in place of JAX's.
    """
    try:
        yield
    except _RAISED as error:
        detail = ", ".join(map(str, error.args))
        raise FloatingPointError(f"JAX found a NaN in what rounds {first} to {last} returned ({detail})") from error
