"""What JAX says of a NaN when it is told to look for them, in words that name the rounds."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def located(first: int, last: int) -> Iterator[None]:
    """Adds the rounds to JAX's complaint of a NaN or an infinity.

    With ``jax.debug_nans`` it looks at all that a compiled program returns: NaNs that a program makes on its way and
    masks are none of its business. Of a program compiled ahead of time it says so with an exception of its own.

    Args:
      first: round that the program begins with, from 1.
      last: round after which it returns.

    Raises:
      FloatingPointError: in place of JAX's.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__name__.endswith("FloatingPointError"):
            raise
        said = ", ".join(map(str, error.args))
        raise FloatingPointError(f"JAX found a NaN in what rounds {first} to {last} returned ({said})") from error
