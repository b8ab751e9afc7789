"""What the programs of a sweep would need on a target."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fedjax_drag.accelerators.targets import Target
from fedjax_drag.checks import message_of
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.plan.programs import ProgramPlan, Say, TooLargeError, array_bytes, compile_programs
from fedjax_drag.experiment.plan.runs import RunPlan, plan_run
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep.grid import Grid, in_common
from fedjax_drag.experiment.sweep.one_program import Member
from fedjax_drag.experiment.sweep.sweep import CheckedSweep, grouped_cells
from fedjax_drag.simulation.batch import lower_batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellsPlan(ProgramPlan):
    """Cells of a sweep that run as one program on a target; its work is that of all cells in the program.

    Attributes:
      cells: how many there are.
      width: how many run in one call of the program, on all devices.
      shared: bytes, of those needed, of the examples, which all cells share.
      cell: bytes that each cell adds.
    """

    cells: int
    width: int
    shared: int | None = None
    cell: int | None = None

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
    programs: tuple[CellsPlan | RunPlan, ...]
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
    federations, programs = Federations(), []
    for point in grid.points:
        federations.dataset(point.config)
    known, groups = grouped_cells(CheckedSweep(grid, None, federations), most)
    failed = {grid.points[place].label: cell.message for place, cell in known.items()}
    for number, members in enumerate(groups, start=1):
        say_which = lambda words, number=number: say(f"program {number} of {len(groups)}: {words}")
        try:
            if len(members) == 1 or members[0].settings.is_run_alone:
                for one in members:
                    programs.append(plan_run(one.point.label, one.point.config, target, federations, say_which))
            else:
                programs.append(_plan_cells(members, target, say_which, min(most or len(members), len(members))))
        except ValueError as error:
            failed |= {one.point.label: message_of(error) for one in members}
    return SweepPlan(target, tuple(programs), failed)


def _plan_cells(members: Sequence[Member], target: Target, say: Say, width: int) -> CellsPlan:
    """Cells of one program: ``width`` at a time, or half as many until they fit, as a sweep does."""
    points, settings = [one.point for one in members], [one.settings for one in members]
    devices, usable = min(target.num_devices, len(members)), target.chip.usable
    data, label = settings[0].data, in_common(points) or f"{len(points)} cells"
    while True:
        lowered = build.traced(lower_batch, settings, width=width, devices=target.devices)
        width = lowered.width
        say(f"{label}: {width} of {len(members)} cells at a time, for {target.description}")
        plan = CellsPlan(
            label=label,
            target=target,
            devices=devices,
            usable=usable,
            needed=usable + 1,
            cells=len(members),
            width=width,
        )
        try:
            programs = compile_programs(lowered, settings[0], None, target.chip)
        except TooLargeError as error:
            plan = dataclasses.replace(plan, needed=max(error.needed, plan.needed))
        else:
            examined = {id(part): part for part in (data.test, data.validation, settings[0].split.examples)}
            examined.pop(id(data.train), None)
            held_out = array_bytes([*examined.values()])
            needed = max(programs.advance.peak + held_out, programs.evaluate.peak + array_bytes(data.train))
            shared = min(held_out + array_bytes(data.train), needed)
            plan = dataclasses.replace(
                plan,
                needed=needed,
                shared=shared,
                cell=(needed - shared) // (width // devices),
                round=programs.round,
                evaluation=programs.evaluation,
                seconds=plan.calls * programs.seconds,
            )
        if plan.fits or width <= devices:
            return plan
        width //= 2
