"""Many runs as one program: cells that differ in numbers, seeds and the split of the data share one compilation."""

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_drag import checks
from fedjax_drag.simulation.cells import (
    Examples,
    Over,
    advance_cells,
    evaluate_cells,
    examples_of,
    gathered,
    init_cells,
    lower_cells,
    outlines_of,
    shapes_of,
    share_of,
    stacked,
)
from fedjax_drag.simulation.devices import memory
from fedjax_drag.simulation.devices.placement import Devices, everywhere, outlined, place_data, platform_of
from fedjax_drag.simulation.driver import Reason, Schedule, Track, drive
from fedjax_drag.simulation.engine import LoweredRun, first_of
from fedjax_drag.simulation.model import initial_params
from fedjax_drag.simulation.model.initial_params import Start
from fedjax_drag.simulation.planning.outline import Lowered, Outline, measure_seconds
from fedjax_drag.simulation.planning.spending import Spent, spent_by
from fedjax_drag.simulation.program import programs
from fedjax_drag.simulation.program.programs import TIMED_STEPS
from fedjax_drag.simulation.result import Result
from fedjax_drag.simulation.run import Inputs, Run, RunState
from fedjax_drag.simulation.runner import Evaluation
from fedjax_drag.simulation.settings import Settings


class BatchEvaluation(NamedTuple):
    """What a callback receives after each evaluation, which is of all cells at once.

    Attributes:
      round: rounds done.
      num_rounds: rounds of every run.
      rows: of the histories, by place of the cell; none of a cell that has diverged and stopped.
      states: of the runs, leading axis ``[C]``; their buffers are given to the next rounds.
      diverged_at: by place, the first round after which a parameter of a cell was not finite.
    """

    round: int
    num_rounds: int
    rows: dict[int, dict[str, Any]]
    states: RunState
    diverged_at: dict[int, int]

    def of(self, cell: int, with_state: bool = True) -> Evaluation:
        """The evaluation of one cell, with its state on the host or without a state."""
        state: Any = _of(cell, self.states) if with_state else None
        return Evaluation(self.round, self.num_rounds, self.rows[cell], state, self.diverged_at.get(cell))


@dataclasses.dataclass(frozen=True)
class BatchSimulation:
    """Checked runs of ``C`` cells; :meth:`run` takes up to :attr:`width` of them at a time.

    Attributes:
      settings: of each cell; the first also says what all have in common.
      cells: on the host, each without an axis.
      examples: on the device.
      over: the way over cells.
      width: how many run in one call of the program.
      given: from which all cells start, on the device; None to draw it for each.
      outlines: what is known of each cell's run from shapes.
      spent: privacy spent after some rounds, of each cell.
    """

    settings: Sequence[Settings]
    cells: tuple[Inputs, ...]
    examples: Examples
    over: Over
    width: int
    given: Start | None
    outlines: tuple[Outline, ...]
    spent: Sequence[Spent]

    @property
    def spec(self) -> Run:
        """The run of the first cell as a value."""
        return self.cells[0].run

    @property
    def mesh(self) -> Mesh | None:
        """Devices that share the cells, or None."""
        return self.over.mesh

    @property
    def shapes(self) -> RunState:
        """Shapes and dtypes of one cell's state."""
        return self.outlines[0].shapes

    @functools.cached_property
    def lowered(self) -> Lowered:
        """The programs for :attr:`width` cells, traced."""
        cells = shapes_of(self.cells[0], self.width, share_of(self.mesh))
        return lower_cells(self.over, cells, self.examples, self.given, self.shapes)

    @functools.cached_property
    def compile_seconds(self) -> float:
        """Seconds that the compilation of the programs took, at the first access.

        Raises:
          MemoryError: :attr:`width` cells do not fit the memory.
        """
        started = time.perf_counter()
        memory.make_room()
        train, *evaluated = self.examples
        (advance, evaluate, *_), _ = memory.compiled(self.lowered)
        whole = [(memory.needed(advance), train), (memory.needed(evaluate), evaluated)]
        memory.check(whole, 0, [f"width below {self.width}"])
        return time.perf_counter() - started

    def compile(self) -> "BatchSimulation":
        """Compiles the programs and returns the batch itself.

        Raises:
          MemoryError: :attr:`width` cells do not fit the memory.
        """
        _ = self.compile_seconds
        return self

    @functools.cached_property
    def seconds_per_step(self) -> float | None:
        """Measured time of a client's local step in the first cell, run alone; None without ``time_clients``."""
        if not self.settings[0].time_clients:
            return None
        run, federation, key = self.cells[0]
        first, state = Inputs(run, federation._replace(train=self.examples[0]), key), programs.init(run, key, None)
        return measure_seconds(programs.client, first, state) / TIMED_STEPS

    def run(
        self,
        which: Sequence[int],
        callbacks: Sequence[Callable[[BatchEvaluation], Any]] = (),
        initial: Sequence[RunState] | None = None,
        over: Collection[int] = (),
    ) -> list[Result]:
        """Runs cells to the last round, or each to the first evaluation after which it is to end.

        Args:
          which: their places, up to :attr:`width` of them.
          callbacks: each is called on the host after every evaluation; it may return why some of the cells are to end,
            by place. The program goes on computing them with the others, and nothing of that is kept.
          initial: states to continue from, all after the same round; default a fresh start.
          over: places in ``which`` of cells that do not go on from ``initial``.

        Returns:
          A result for each cell, with an equal share of running and compilation time. Histories start after
          ``initial``.
        """
        checks.count("cells", len(which), 1, self.width)
        first, (train, *evaluated) = self.settings[0], self.examples
        # The program has one width: what is missing is filled up with copies of the last cell, which are not reported.
        padded = [*which, *[which[-1]] * (self.width - len(which))]
        compile_seconds, seconds_per_step = self.compile_seconds, self.seconds_per_step
        cells = jax.tree.map(stacked, *[self.cells[place] for place in padded])
        cells = jax.device_put(cells, share_of(self.mesh))
        make = init_cells(jax.default_backend())
        states = make(self.over, cells, self.given) if initial is None else self._stacked(initial)

        started = time.perf_counter()
        reports = self.spec.model.metrics, first.reports_clients, first.stop_on_divergence
        tracks = [Track(self.outlines[at].cost, self.spent[at], *reports, self.settings[at].criterion) for at in which]
        stopped: dict[int, RunState] = {place: _of(place, states) for place in over}

        def record(states: RunState, before: int, done: int, measured: Any) -> bool:
            running = [place for place in range(len(which)) if place not in stopped]
            rows = {place: tracks[place].add(before, done, _row(place, measured)) for place in running}
            diverged = {place: track.diverged_at for place, track in enumerate(tracks) if track.diverged_at}
            for callback in callbacks:
                ended: dict[int, Reason] = (
                    callback(BatchEvaluation(done, first.num_rounds, rows, states, diverged)) or {}
                )
                for place, why in ended.items():
                    tracks[place].ended = tracks[place].ended or why
            stopped.update({place: _of(place, states) for place in running if tracks[place].is_over})
            return len(stopped) < len(which)

        if len(stopped) < len(which):
            schedule = Schedule(first.num_rounds, first.eval_every, first.rounds_per_compile or first.eval_every)
            totals = jax.tree.map(lambda total: np.zeros(self.width, total.dtype), programs.no_totals(self.spec))
            totals = jax.device_put(totals, share_of(self.mesh))
            advance = functools.partial(advance_cells, self.over, train, cells)
            evaluate = lambda states: evaluate_cells(self.over, cells, states, *evaluated)
            states = drive(schedule, states, int(states.round[0]), totals, advance, evaluate, record)
        jax.block_until_ready(states)
        spent = (time.perf_counter() - started) / len(which), compile_seconds / len(which), seconds_per_step
        return [
            track.result(stopped[place] if place in stopped else _row(place, states), *spent)
            for place, track in enumerate(tracks)
        ]

    def _stacked(self, initial: Sequence[RunState]) -> RunState:
        rounds = sorted({int(state.round) for state in initial})
        if len(rounds) > 1:
            raise ValueError(f"initial: states after rounds {rounds}: must all be after the same round")
        padded = [*initial, *[initial[-1]] * (self.width - len(initial))]
        return jax.device_put(jax.tree.map(stacked, *padded), share_of(self.mesh))


def prepare_batch(
    settings: Sequence[Settings],
    *,
    width: int | None = None,
    cells_axis: str = "auto",
    mesh: Mesh | None = None,
) -> BatchSimulation:
    """Places the data of some cells, without computing anything.

    Args:
      settings: of each cell. They may differ in numbers of their parts, in ``seed``, in the split of ``data`` (of one
        data set, among equally many clients), in who is malicious (but not in whether anybody is, nor in how many are
        expected in a cohort if the method needs ``num_byzantine``), and in ``availability`` and ``dropout_rate`` (but
        not in whether they are given); see :func:`~fedjax_drag.simulation.cells.likeness`.
      width: cells in one call of the program; default all.
      cells_axis: ``"map"`` (one after another), ``"vmap"`` (all at once) or ``"auto"``: one after another on a CPU,
        all of whose cores a single cell occupies.
      mesh: devices that share the cells, whose number need not be a multiple of the devices'; a cell is on one device.

    Raises:
      ValueError: if the settings cannot be run, or not as one program.
    """
    cells, over, width = gathered(settings, width, cells_axis, mesh)
    first = settings[0]
    examples = place_data(examples_of(first), everywhere(mesh))
    outlines = outlines_of(cells, examples[0])
    given = initial_params.given(first.initial_params, outlines[0].shapes, first.model)
    given = jax.device_put(given, everywhere(mesh))
    spent = [spent_by(cell) for cell in settings]
    batch = BatchSimulation(settings, cells, examples, over, width, given, outlines, spent)
    _ = batch.lowered  # what cannot be traced is refused here
    return batch


def lower_batch(
    settings: Sequence[Settings],
    *,
    width: int | None = None,
    devices: Devices | None = None,
) -> LoweredRun:
    """Lowers the runs of some cells as one program, as ``fd.simulation.lower`` does one; its mesh shares the cells.

    Args:
      settings: as for :func:`prepare_batch`.
      width: cells in one call of the program; default all.
      devices: which share the cells; default the first of this process.

    Raises:
      ValueError: if the settings cannot be run.
    """
    sharing = () if devices is None else devices[: len(settings)]
    mesh = Mesh(sharing, ("cells",)) if len(sharing) > 1 else None
    everyone, platform = everywhere(mesh) or first_of(devices), platform_of(devices)
    cells, over, width = gathered(settings, width, "auto", mesh, devices)
    examples = outlined(examples_of(settings[0]), everyone)
    first, *_ = outlines_of(cells, examples[0])
    given = initial_params.given(settings[0].initial_params, first.shapes, settings[0].model)
    shapes = shapes_of(cells[0], width, share_of(mesh) or everyone)
    lowered = lower_cells(over, shapes, examples, outlined(given, everyone), first.shapes, platform)
    return LoweredRun(lowered, first, mesh, cells[0].run.batching, width)


def _row(cell: int, tree: Any) -> Any:
    """The entry of one cell in a tree with a leading axis of cells."""
    return jax.tree.map(lambda x: x[cell], tree)


def _of(cell: int, states: RunState) -> Any:
    """The state of one cell, on the host."""
    return jax.device_get(_row(cell, states))
