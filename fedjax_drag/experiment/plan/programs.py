"""Programs compiled for a target, with what they need and do there."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from fedjax_drag.accelerators import counts
from fedjax_drag.accelerators.counts import Memory, Work
from fedjax_drag.accelerators.targets import Chip
from fedjax_drag.simulation.program.programs import ROUNDS

Say = Callable[[str], Any]
"""Told what is compiled next."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class TooLargeError(Exception):
    """The compiler refuses a program that does not fit the device's memory.

    Attributes:
      needed: bytes that the compiler names.
    """

    def __init__(self, needed: int) -> None:
        super().__init__(f"the compiler needs {needed} bytes")
        self.needed = needed


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program for rounds: what it needs, and what it does.

    Attributes:
      memory: on each device.
      round: work of one round.
      call: work of a call beside its rounds.
    """

    memory: Memory
    round: Work
    call: Work


def compile_rounds(lowered: Any, lengths: Mapping[str, int]) -> Compiled:
    """Compiles a program with a loop over rounds.

    Args:
      lowered: from ``jax.jit(function).lower(...)``.
      lengths: of loops in it, by name.

    Raises:
      TooLargeError: the compiler refuses it.
    """
    program = compiled(lowered)
    text = program.as_text()
    call, whole = (counts.work_of(text, {**lengths, ROUNDS: times}) for times in (0, 1))
    return Compiled(counts.memory_of(program), whole.beside(call), call)


def compiled(lowered: Any) -> Any:
    """A lowered program compiled.

    Raises:
      TooLargeError: the compiler refuses it.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        needed = _needed(str(error))
        if needed is None:
            raise
        raise TooLargeError(needed) from error


def _needed(message: str) -> int | None:
    """The bytes that a compiler for TPUs asks for; None where the message is about something else."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    words = "temporaries|total memory|[Uu]sed|[Uu]sage|required"
    sizes = re.findall(rf"(?:{words})[^\d]{{0,40}}?([\d.]+)([KMGT]?)\b", message)
    return max((int(float(number) * _UNITS[unit]) for number, unit in sizes), default=0)


def array_bytes(tree: Any) -> int:
    """Bytes of a pytree of arrays or shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def total_seconds(parts: Sequence[tuple[int, Work]], chip: Chip) -> float:
    """About how many seconds some works take one after another, each so many times."""
    return sum(times * work.seconds(chip) for times, work in parts)
