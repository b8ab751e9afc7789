"""How many of the cohort a rule takes to be malicious: a number that it was given, or the simulation's."""

import warnings
from collections.abc import Mapping
from typing import Any

from fedjax_drag import checks

EXTRA = "num_byzantine"
"""The extra by which a simulation tells the number."""


def check_byzantine(given: int | None) -> None:
    """Raises ValueError unless a rule's argument ``num_byzantine`` is a count or None."""
    if given is not None:
        checks.count(EXTRA, given)


def byzantine_needs(given: int | None) -> frozenset[str]:
    """What a rule needs for its number of malicious clients: the extra, unless it was given a number."""
    return frozenset({EXTRA} if given is None else ())


def byzantine_count(rule: str, given: int | None, extras: Mapping[str, Any]) -> int:
    """The number of malicious clients that a rule assumes in a cohort.

    Args:
      rule: its name, for messages.
      given: its argument ``num_byzantine``; None for the number of the extra.
      extras: of ``apply``. The extra ``num_byzantine`` is a Python integer, as it decides what is compiled.

    Raises:
      ValueError: nobody says how many, or the extra is no count, such as a traced number.
    """
    told = extras.get(EXTRA)
    if told is None:
        if given is None:
            allowed = "must be given how many of the cohort may be malicious, as f >= 0"
            raise checks.ArgumentError("num_byzantine", f"{rule} {allowed}", given=None)
        return given
    checks.count(EXTRA, told)
    if given is None:
        return int(told)
    if given < told:
        warnings.warn(
            f"{rule}: num_byzantine={given}: the simulation has {told} malicious clients in a cohort; leave it out to "
            "take that number",
            stacklevel=2,
        )
    return given


def check_majority(rule: str, num_byzantine: int, size: int) -> None:
    """Raises ValueError unless more than half of a cohort of this size are taken to be honest."""
    if 2 * num_byzantine >= size:
        raise checks.ArgumentError(
            "num_byzantine",
            f"must be at most {(size - 1) // 2} for a cohort of {size} ({rule} needs S > 2 f)",
            given=num_byzantine,
        )
