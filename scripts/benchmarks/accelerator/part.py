"""What a part of the benchmark is: named cases, each of which measures rows of one table."""

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.accelerator.sizes import Sizes
from benchmarks.timing import Row

Cases = dict[str, Callable[[], list[Row]]]
"""By name, a function that measures and returns rows with the same columns as those of the other cases."""

Outcome = dict[str, Any]
"""What came of a case: ``rows``, or ``failed``, a reason of one line; and ``seconds``."""

_LONGEST = 300


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the benchmark.

    Attributes:
      name: on the command line.
      title: of its section.
      text: what is measured and what the columns are.
      minutes: estimate for the full size on a GPU.
      cases: of a size. Their names must be known without starting JAX's backend, since only one process at a time can
        have the device.
      seconds: most that a case may take.
      alone: whether each case has a process of its own, and the device for itself.
    """

    name: str
    title: str
    text: str
    minutes: float
    cases: Callable[[Sizes], Cases]
    seconds: int = 180
    alone: bool = False


def reason(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0].strip()}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def attempts(makers: dict[str, Callable[[], Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Calls every function; returns the results by name, and by name the reason of what failed.

    Raises:
      Exception: what the last function raised, if all failed.
    """
    made, failed, last = {}, {}, None
    for name, make in makers.items():
        try:
            made[name] = make()
        except Exception as error:
            failed[name], last = reason(error), error
    if last is not None and not made:
        raise last
    return made, failed
