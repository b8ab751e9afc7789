"""How options are declared: dataclasses whose fields have a check, and the checks that several of them share."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from fedjax_drag import checks

LARGEST = 2**31 - 1
"""Largest count: those on the device are int32."""

Check = Callable[[str, Any], None]
"""``(name, value) -> None``; raises ValueError naming both and what is allowed."""

Options = TypeVar("Options")


def option(check: Check, default: Any = dataclasses.MISSING, *, kw_only: bool = True) -> Any:
    """A dataclass field with a check, which :func:`check_options` calls; without a default it must be given."""
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"check": check})


def with_default(group: type, name: str, default: Any) -> Any:
    """The option ``name`` of a group with another default and the same check."""
    return dataclasses.field(default=default, metadata=group.__dataclass_fields__[name].metadata)


# So that type checkers and editors know which options must be given.
@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False, field_specifiers=(option,))
def options(cls: type[Options]) -> type[Options]:
    """Makes a frozen dataclass of options, which are given by keyword."""
    return dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)


def check_options(options: Any) -> None:
    """Checks every option of a dataclass by itself; the ValueError names the option, its value and what is allowed."""
    for field in dataclasses.fields(options):
        if "check" in field.metadata:
            field.metadata["check"](field.name, getattr(options, field.name))


def documented(cls: type[Options]) -> type[Options]:
    """Appends the attributes of a class's groups to its docstring, which ends with its own attributes, if any."""
    groups = [base for base in reversed(cls.__mro__[1:]) if base.__bases__ == (object,) and base.__doc__]
    entries = [(inspect.getdoc(group) or "").partition("\nAttributes:\n")[2] for group in groups]
    own = inspect.cleandoc(cls.__doc__ or "")
    cls.__doc__ = "\n".join([own, *([] if "\nAttributes:\n" in own else ["\nAttributes:"]), *entries])
    return cls


count: Check = partial(checks.count, low=1, high=LARGEST)


def optional(check: Check) -> Check:
    """The check of an option that may also be None."""

    def checked(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return checked


def one_of(*allowed: str) -> Check:
    """The check of an option that is one of some names."""
    return partial(checks.one_of, allowed=allowed)


def positive_number(name: str, value: Any) -> None:
    """Refuses anything but a plain number above 0: a traced one could not decide how long a pass is."""
    if not checks.is_concrete(value):
        raise ValueError(f"{name}={checks.shown(value)}: must be a number > 0")
    checks.positive(name, value)


def count_or_pair(name: str, value: Any) -> None:
    """Refuses what is neither a count nor two counts in ascending order."""
    _check_or_pair(count, name, value)


def positive_number_or_pair(name: str, value: Any) -> None:
    """Refuses what is neither a number above 0 nor two counts in ascending order."""
    _check_or_pair(positive_number, name, value)


def _check_or_pair(check: Check, name: str, value: Any) -> None:
    """Refuses what fails a check and is no pair of counts either."""
    if isinstance(value, list | tuple):
        whole = all(isinstance(entry, int | np.integer) and not isinstance(entry, bool) for entry in value)
        if len(value) != 2 or not whole or not 1 <= value[0] <= value[1] <= LARGEST:
            raise ValueError(f"{name}={checks.shown(value)}: must be a pair [low, high] of integers, 1 <= low <= high")
        return
    try:
        check(name, value)
    except ValueError as error:
        raise ValueError(f"{error}, or a pair [low, high]") from None


def span(length: float | Sequence[int] | None) -> tuple[int | None, Any]:
    """The least and the largest value of an option that may be a pair; the least is None where there is only one."""
    if not isinstance(length, Sequence):
        return None, length
    low, high = length
    return (None if low == high else low), high


def flag(name: str, value: Any) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={checks.shown(value)}: must be True or False")
