"""What the programs of a sweep would need on a target."""

import dataclasses
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from fedjax_drag.accelerators import counts
from fedjax_drag.accelerators.counts import Work
from fedjax_drag.accelerators.targets import Target
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.plan.programs import (
    Say,
    TooLargeError,
    array_bytes,
    compile_rounds,
    compiled,
    total_seconds,
)
from fedjax_drag.experiment.plan.run_plan import RunPlan, plan_run, typical_steps
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep.grid import Grid, Point, describe
from fedjax_drag.simulation.batch import LoweredCells, lower_batch
from fedjax_drag.simulation.cells import likeness
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.program.local import LOCAL_STEPS
from fedjax_drag.simulation.settings import Settings


@dataclasses.dataclass(frozen=True)
class ProgramPlan:
    """Cells of a sweep that run as one program on a target.

    Attributes:
      label: what the cells have in common.
      cells: how many there are.
      width: how many run in one call of the program, on all devices.
      devices: how many share them.
      usable: bytes of a device that JAX gives to programs.
      needed: bytes that the program needs on each device; where the compiler refused, what it names.
      shared: of these the examples, which all cells share; None where the compiler refused, as are the others.
      cell: of these what each cell adds.
      round: work of a round of all cells in the program.
      evaluation: work of their evaluation.
      seconds: about how long, of all cells.
    """

    label: str
    cells: int
    width: int
    devices: int
    usable: int
    needed: int
    shared: int | None = None
    cell: int | None = None
    round: Work | None = None
    evaluation: Work | None = None
    seconds: float | None = None

    @property
    def fits(self) -> bool:
        """Whether a device has the memory that the program needs."""
        return self.needed <= self.usable

    @property
    def calls(self) -> int:
        """How often the program is started to run all cells."""
        return math.ceil(self.cells / self.width)

    @property
    def most_cells(self) -> int | None:
        """About how many cells one program could hold, on all devices."""
        if self.shared is None or not self.cell:
            return None
        return int((self.usable - self.shared) / self.cell) * self.devices


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """A sweep on a target.

    Attributes:
      target: of the compilers.
      programs: cells that share a program, and cells that run alone.
      failed: by the name of a cell that cannot be run, why.
    """

    target: Target
    programs: tuple[ProgramPlan | RunPlan, ...]
    failed: Mapping[str, str]

    @property
    def fits(self) -> bool:
        """Whether all programs fit."""
        return all(program.fits for program in self.programs)

    @property
    def seconds(self) -> float | None:
        """About how long the whole sweep takes; None where a program does not fit."""
        seconds = [program.seconds for program in self.programs]
        return None if None in seconds else sum(filter(None, seconds))


def plan_sweep(grid: Grid, target: Target, say: Say, most: int | None = None) -> SweepPlan:
    """Compiles the programs of a sweep for a target, as wide as they fit; it computes nothing.

    Args:
      grid: the sweep.
      target: whose devices there need not be.
      say: told what is compiled.
      most: cells in one program; None for what the memory allows.

    Raises:
      FileNotFoundError: the data are not on this machine.
    """
    federations, failed = Federations(), {}
    alike: dict[Hashable, list[tuple[Point, Settings]]] = {}
    for point in grid.points:
        federations.dataset(point.config)
        try:
            settings = build.settings(point.config, federations.split(point.config))
            federate(settings)
            key = build.traced(likeness, settings)
        except ValueError as error:
            failed[point.label] = str(error).splitlines()[0]
            continue
        alike.setdefault(key, []).append((point, settings))
    programs = list(_programs(list(alike.values()), federations, target, say, most, failed))
    return SweepPlan(target, tuple(programs), failed)


def _programs(
    groups: Sequence[Sequence[tuple[Point, Settings]]],
    federations: Federations,
    target: Target,
    say: Say,
    most: int | None,
    failed: dict[str, str],
) -> Iterator[ProgramPlan | RunPlan]:
    """The programs of all cells, in the order of their first ones."""
    for number, inside in enumerate(groups, start=1):
        alone = len(inside) == 1 or most == 1 or inside[0][1].client_state != DEVICE
        say_which = lambda words, number=number: say(f"program {number} of {len(groups)}: {words}")
        try:
            if not alone:
                yield _plan_group(inside, target, say_which, most)
                continue
            for point, _ in inside:
                yield plan_run(point.label, point.config, target, federations, say_which)
        except ValueError as error:
            failed |= {point.label: str(error).splitlines()[0] for point, _ in inside}


def _plan_group(
    members: Sequence[tuple[Point, Settings]],
    target: Target,
    say: Say,
    most: int | None,
) -> ProgramPlan:
    """Cells of one program: all at a time, or half as many until they fit, as a sweep does."""
    settings = [own for _, own in members]
    devices, width = min(target.num_devices, len(members)), min(most or len(members), len(members))
    label = _common_name([point for point, _ in members])

    while True:
        lowered = build.traced(lower_batch, settings, width=width, devices=target.devices)
        width = lowered.width
        say(f"{label}: {width} of {len(members)} cells at a time, for {target.description}")
        common = {"label": label, "cells": len(members), "width": width, "devices": devices}
        plan = _compiled(lowered, settings[0], common, target)
        if plan.fits or width <= devices:
            return plan
        width //= 2


def _compiled(lowered: LoweredCells, first: Settings, common: dict[str, Any], target: Target) -> ProgramPlan:
    """A group at one width."""
    usable, per_device = target.chip.usable, common["width"] // common["devices"]
    try:
        advance = compile_rounds(lowered.programs.advance, {LOCAL_STEPS: typical_steps(first, lowered.batching, None)})
        program = compiled(lowered.programs.evaluate)
    except TooLargeError as error:
        return ProgramPlan(**common, usable=usable, needed=max(error.needed, usable + 1))
    memory, evaluation = counts.memory_of(program), counts.work_of(program.as_text())
    data = first.data
    shared = array_bytes((data.train, data.test, data.validation))
    needed = max(advance.memory.peak + array_bytes((data.test, data.validation)), memory.peak + array_bytes(data.train))
    calls = math.ceil(first.num_rounds / (first.rounds_per_compile or first.eval_every))
    evaluations = math.ceil(first.num_rounds / first.eval_every)
    parts = [(first.num_rounds, advance.round), (calls, advance.call), (evaluations, evaluation)]
    times = math.ceil(common["cells"] / common["width"])
    return ProgramPlan(
        **common,
        usable=usable,
        needed=needed,
        shared=min(shared, needed),
        cell=max(0, needed - shared) // per_device,
        round=advance.round,
        evaluation=evaluation,
        seconds=times * total_seconds(parts, target.chip),
    )


def _common_name(points: Sequence[Point]) -> str:
    """The values that all cells share; where there are none, how many cells there are."""
    values = [point.values for point in points]
    same = {axis: value for axis, value in values[0].items() if all(own[axis] == value for own in values)}
    return describe(same) if same else f"{len(points)} cells"
