"""The parts of the benchmark, in the order in which they are measured: those that tell most come first."""

from collections.abc import Sequence

from benchmarks.accelerator.part import Part
from benchmarks.accelerator.parts import convolution, device, equality, fast_tests, programs, rounds, rules, runs

PARTS: tuple[Part, ...] = (
    device.PART,
    equality.PART,
    rounds.WORKLOADS,
    rules.PART,
    convolution.PART,
    rounds.PRECISION,
    runs.BENCHMARK,
    rounds.AXIS,
    runs.SWEEP,
    programs.MEMORY,
    rounds.COHORTS,
    fast_tests.PART,
    rules.LARGE,
    programs.COMPILATION,
)
"""Every part once; names are those of the command line."""


def select(names: Sequence[str]) -> list[Part]:
    """The parts with these names, in the order of :data:`PARTS`; all if there are none.

    Raises:
      ValueError: a name is unknown.
    """
    known = [part.name for part in PARTS]
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r}: must be one of {', '.join(known)}")
    return [part for part in PARTS if not names or part.name in names]
