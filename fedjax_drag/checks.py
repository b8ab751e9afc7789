"""Checks of arguments: errors of one line that name the argument, its value and what is allowed.

Only concrete Python and NumPy numbers are checked: a hyperparameter that is swept arrives as a
tracer and passes through.
"""

import contextlib
import numbers
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

import numpy as np

_MOST_SHOWN = 140  # characters of a value in a message


class _Short(reprlib.Repr):
    """Short texts for values of any kind, also inside lists and mappings."""

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, type):
            return f"class {x.__qualname__}"
        if not isinstance(x, np.generic) and hasattr(x, "dtype") and hasattr(x, "shape"):
            return f"array {x.dtype}{list(x.shape)}"
        if callable(x) and hasattr(x, "__qualname__"):
            return f"function {x.__qualname__}"
        text = super().repr1(x, level)
        return f"{type(x).__name__}(...)" if "\n" in text or " at 0x" in text else text


_SHORT = _Short()
_SHORT.maxstring, _SHORT.maxother = 60, _MOST_SHOWN


def shown(value: Any) -> str:
    """One line for a value of any kind and size in an error message."""
    text = " ".join(_SHORT.repr(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def first_line(error: BaseException) -> str:
    """The type and the first line of an error that a part of the user's has raised."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def message_of(error: BaseException) -> str:
    """The first line of an error; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


_NOT_SHOWN = object()


class ArgumentError(ValueError):
    """An argument is not what is allowed: one line that names it, its value and what it must be.

    Args:
      argument: its name; what follows it, as in ``hidden[0]`` and ``aggregator=krum``, is shown only.
      said: what is wrong with it, such as ``must be >= 1``.
      given: its value, which is shown; left out where ``said`` says it.

    Attributes:
      argument: its name.
    """

    def __init__(self, argument: str, said: str, given: Any = _NOT_SHOWN) -> None:
        super().__init__(f"{argument}: {said}" if given is _NOT_SHOWN else f"{argument}={shown(given)}: {said}")
        self.argument = re.split(r"\W", argument, maxsplit=1)[0]

    def __reduce__(self) -> tuple[Any, ...]:  # errors are sent to other processes
        return _argument_error, (str(self), self.argument)


def _argument_error(message: str, argument: str) -> ArgumentError:
    error = ArgumentError.__new__(ArgumentError, message)
    error.argument = argument
    return error


@contextlib.contextmanager
def explained(argument: str, allowed: str) -> Iterator[None]:
    """Within it, an error that a part of the user's raises is a ValueError of one line that says what to give.

    Args:
      argument: its name, with its value where that says something.
      allowed: what the part must do.
    """
    try:
        yield
    except Exception as error:  # a user's function may raise anything
        raise ArgumentError(argument, f"must {allowed}; it fails with {first_line(error)}") from error


_NOT_REAL = bool | np.bool_ | np.complexfloating | np.flexible | np.datetime64 | np.timedelta64 | np.object_


def is_concrete(value: Any) -> bool:
    """Whether ``value`` is a plain number and can be compared while a program is built."""
    return isinstance(value, numbers.Real | np.generic) and not isinstance(value, _NOT_REAL)


def in_range(
    name: str,
    value: Any,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Raises ValueError unless a concrete number lies between ``low`` and ``high``.

    Infinite bounds and bounds declared open are excluded, as are integers that no float can hold; NaN is never allowed.
    A JAX array without axes passes.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not is_concrete(value):
        if isinstance(value, np.generic) or getattr(value, "shape", None) != ():
            raise ArgumentError(name, "must be a number", given=value)
        return
    open_low, open_high = open_low or np.isinf(low), open_high or np.isinf(high)
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    is_float = not isinstance(value, int) or abs(value) <= sys.float_info.max
    if not (is_float and above and below):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise ArgumentError(name, f"must be in {interval}", given=value)


def positive(name: str, value: Any) -> None:
    """Raises ValueError unless a concrete number is finite and above 0."""
    in_range(name, value, 0.0, open_low=True)


def count(name: str, value: Any, low: int = 0, high: int | None = None) -> None:
    """Raises ValueError unless ``value`` is an integer in ``[low, high]``; counts are static."""
    allowed = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    integral = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integral or value < low or (high is not None and value > high):
        raise ArgumentError(name, f"must be {allowed}", given=value)


def flag(name: str, value: Any) -> None:
    """Raises ValueError unless ``value`` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(name, "must be True or False", given=value)


def known(name: str, value: Any, part: str) -> Any:
    """The value of an argument that a simulation fills in; raises ValueError for None, in a part that is used alone."""
    if value is None:
        raise ArgumentError(name, f"must be given to {part} where no simulation says it", given=None)
    return value


def one_of(name: str, value: Any, allowed: Iterable[Any], otherwise: str = "") -> None:
    """Raises ValueError, with the nearest spelling or else a hint, unless ``value`` is one of ``allowed``."""
    allowed = list(allowed)
    # Arrays compare entry by entry; they and whatever else has no hash are none of the names, numbers and flags.
    if not has_hash(value) or value not in allowed:
        names = [str(a) for a in allowed]
        near = get_close_matches(str(value), names, n=1) or get_close_matches(str(value).lower(), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else otherwise and f"; {otherwise}"
        known = f"one of {', '.join(names)}" if names else "left out"
        raise ArgumentError(name, f"must be {known}{hint}", given=value)


def names(name: str, values: Any, allowed: Iterable[Any], otherwise: str = "") -> list[Any]:
    """The values of a list; raises ValueError unless it is one, and no text, and all are of ``allowed``."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ArgumentError(name, "must be a list", given=values)
    values, allowed = list(values), list(allowed)
    for value in values:
        one_of(name, value, allowed, otherwise)
    return values


def has_hash(value: Any) -> bool:
    """Whether a value can be a key."""
    try:
        hash(value)
    except TypeError:
        return False
    return True
