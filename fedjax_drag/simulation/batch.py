"""Many runs as one program: cells that differ in numbers, seeds and the split of the data share one compilation.

A cell's numbers (a rule's ``c``, a step size, the strength of an attack) are inputs of the program, as are its random
key, its clients' index lists and its malicious clients. All cells share one copy of the examples.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag import checks, stopping
from fedjax_drag.simulation.cells import Cells, LoweredBatch, Numbers, examples_of, for_each, share_of, trace_batch
from fedjax_drag.simulation.client_cost import ClientCost, measure_seconds
from fedjax_drag.simulation.devices import nans, program_cache
from fedjax_drag.simulation.devices.placement import everywhere
from fedjax_drag.simulation.every_client.accuracies import by_client_and_class
from fedjax_drag.simulation.model.start import Start
from fedjax_drag.simulation.model.trainable import joined
from fedjax_drag.simulation.planning import memory, privacy
from fedjax_drag.simulation.planning.early_stopping import Reason
from fedjax_drag.simulation.program.attack_metrics import UNDEFINED
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.simulation.program.programs import TIMED_STEPS, Programs
from fedjax_drag.simulation.program.work import RunState
from fedjax_drag.simulation.result import Result, history_row, stack_history, with_client_seconds
from fedjax_drag.simulation.runner import Evaluation
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch


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


class CompiledBatch(NamedTuple):
    """The programs of :class:`LoweredBatch`, compiled, and the seconds that this took."""

    init: Any
    advance: Any
    evaluate: Any
    seconds: float


class Spent(NamedTuple):
    """Seconds that a cell's run took, and that a client needs for a local step."""

    running: float
    compiling: float
    per_step: float | None


@dataclasses.dataclass(frozen=True)
class BatchSimulation:
    """Checked and traced runs of ``C`` cells; :meth:`run` takes up to :attr:`width` of them at a time.

    Attributes:
      first: the settings of the first cell, with what all have in common.
      cells: all of them, on the host.
      train: training examples on the device.
      held_out: test and validation examples on the device; None for the latter where the data have none.
      width: how many run in one call of the program.
      mesh: devices that share them, or None.
      programs: one cell's run as pure functions, with the numbers of the first.
      walk: the way over the clients of a round.
      given: from which all cells start, on the device; None to draw it for each.
      lowered: the programs for :attr:`width` cells, traced.
      costs: what the method asks of one client, by cell.
      spent: privacy spent after some rounds, of each cell.
    """

    first: Settings
    cells: Cells
    train: Batch
    held_out: tuple[Batch, Batch | None]
    width: int
    mesh: Mesh | None
    programs: Programs
    walk: Walk
    given: Start | None
    lowered: LoweredBatch
    costs: tuple[ClientCost, ...]
    spent: Sequence[privacy.Spent]

    @property
    def mesh_devices(self) -> int:
        """How many devices share the clients of a cell: the devices of ``mesh`` share the cells."""
        return 1

    @property
    def shapes(self) -> RunState:
        """Shapes and dtypes of one cell's state."""
        return jax.eval_shape(self.programs.init, jax.random.key(0))

    @property
    def examined(self) -> Batch | None:
        """Where the examples that clients hold out are; None unless clients are evaluated."""
        return None if self.cells.federation.held_out is None else self.train

    @functools.cached_property
    def compiled(self) -> CompiledBatch:
        """The programs of :attr:`lowered`, compiled at the first access.

        Raises:
          MemoryError: :attr:`width` cells do not fit the memory.
        """
        started = time.perf_counter()
        init, advance, evaluate = program_cache.compiled_at_once(self.lowered)
        whole = [(memory.needed(advance), self.train), (memory.needed(evaluate), (self.held_out, self.examined))]
        memory.check(whole, 0, [f"width below {self.width}"])
        return CompiledBatch(init, advance, evaluate, time.perf_counter() - started)

    def compile(self) -> "BatchSimulation":
        """Compiles the programs and returns the batch itself.

        Raises:
          MemoryError: :attr:`width` cells do not fit the memory.
        """
        _ = self.compiled
        return self

    @functools.cached_property
    def seconds_per_step(self) -> float | None:
        """Measured time of a client's local step in the first cell, run alone; None without ``time_clients``."""
        if not self.first.time_clients:
            return None
        cell = self._cells_at([0])
        federation, key = jax.tree.map(lambda x: x[0], (cell.federation, cell.key))
        federation = federation._replace(train=self.train)
        state = jax.jit(self.programs.init)(key)
        program = jax.jit(self.programs.client).lower(federation, key, state).compile()
        return measure_seconds(program, federation, key, state) / TIMED_STEPS

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
        # The program has one width: what is missing is filled up with copies of the last cell, which are not reported.
        padded = [*which, *[which[-1]] * (self.width - len(which))]
        cells, compiled, seconds_per_step = self._cells_at(padded), self.compiled, self.seconds_per_step
        states = compiled.init(cells, self.given) if initial is None else self._stacked(initial)

        started = time.perf_counter()
        histories: list[list[dict[str, Any]]] = [[] for _ in which]
        diverged_at: dict[int, int] = {}
        stopped: dict[int, RunState] = {place: _of(place, states) for place in over}
        ended: dict[int, Reason] = {}
        done = int(states.round[0])
        while done < self.first.num_rounds and len(stopped) < len(which):
            running = [place for place in range(len(which)) if place not in stopped]
            before, done = done, min(self.first.num_rounds, (done // self.first.eval_every + 1) * self.first.eval_every)
            states, measured = self._advance(cells, states, before, done)
            rows = {}
            for place in running:
                metrics, totals, evaluated = _row(place, measured)
                evaluated = by_client_and_class(evaluated, self.first.reports_clients)
                measured_of = metrics, totals, evaluated, self.costs[which[place]]
                rows[place] = history_row(done, done - before, *measured_of, self.spent[which[place]](done))
                histories[place].append(rows[place])
                if totals.diverged_at:
                    diverged_at.setdefault(place, int(totals.diverged_at))
            for callback in callbacks:
                ended |= callback(BatchEvaluation(done, self.first.num_rounds, rows, states, diverged_at)) or {}
            over = {*ended, *(diverged_at if self.first.stop_on_divergence else ())}
            stopped |= {place: _of(place, states) for place in over if place in rows}
        jax.block_until_ready(states)
        seconds = (time.perf_counter() - started) / len(which)
        spent = Spent(seconds, compiled.seconds / len(which), seconds_per_step)
        ends = [stopped.get(place) or _row(place, states) for place in range(len(which))]
        return [
            self._result(history, end, spent, diverged_at.get(place), self.costs[which[place]], ended.get(place))
            for place, (history, end) in enumerate(zip(histories, ends, strict=True))
        ]

    def _advance(self, cells: Cells, states: RunState, done: int, target: int) -> tuple[RunState, Any]:
        """Rounds ``done`` to ``target``: the states; and on the host the last round's metrics, totals, evaluation."""
        metrics, totals = {}, for_each(self.width, self.programs.totals)
        at_once = 1 if nans.are_sought() else self.first.rounds_per_compile or self.first.eval_every
        while done < target:
            stopping.check()
            done = min(target, done + at_once)
            with nans.unchecked():
                states, metrics, totals = self.compiled.advance(self.train, cells, states, totals, np.int32(done))
            nans.check(done, {"states": states, "metrics": metrics, "totals": totals}, UNDEFINED)
        with nans.unchecked():
            evaluated = self.compiled.evaluate(cells, states, self.held_out, self.examined)
        nans.check(done, {"evaluation": evaluated})
        return states, jax.device_get((metrics, totals, evaluated))

    def _result(
        self,
        history: list[dict[str, Any]],
        state: RunState,
        spent: Spent,
        diverged_at: int | None,
        cost: ClientCost,
        ended_early: Reason | None,
    ) -> Result:
        return Result(
            params=joined(state.params, state.model.frozen),
            history=with_client_seconds(stack_history(history), spent.per_step),
            state=state,
            seconds=spent.running,
            compile_seconds=spent.compiling,
            cost=cost,
            seconds_per_step=spent.per_step,
            diverged_at=diverged_at,
            ended_early=ended_early,
        )

    def _cells_at(self, places: Sequence[int]) -> Cells:
        chosen = jax.tree.map(lambda x: x[np.asarray(places)], self.cells)
        return jax.device_put(chosen, share_of(self.mesh) if len(places) == self.width else None)

    def _stacked(self, initial: Sequence[RunState]) -> RunState:
        rounds = sorted({int(state.round) for state in initial})
        if len(rounds) > 1:
            raise ValueError(f"initial: states after rounds {rounds}: must all be after the same round")
        padded = [*initial, *[initial[-1]] * (self.width - len(initial))]
        return jax.device_put(jax.tree.map(_stacked_rows, *padded), share_of(self.mesh))


def prepare_batch(
    settings: Sequence[Settings],
    numbers: Sequence[Numbers],
    rebuild: Callable[[Numbers], Settings],
    *,
    width: int | None = None,
    cells_axis: str = "auto",
    mesh: Mesh | None = None,
) -> BatchSimulation:
    """Places the data of some cells and traces their runs as one program, without computing anything.

    Args:
      settings: of each cell. They may differ in ``seed``, in the split of ``data`` (of one data set, among equally many
        clients), in who is malicious (but not in whether anybody is, nor in how many are expected in a cohort if the
        method needs ``num_byzantine``), in ``availability`` and ``dropout_rate`` (but not in whether they are given),
        and in ``numbers``.
      numbers: of each cell, those in which they differ; the same names everywhere.
      rebuild: ``(numbers) -> settings`` of a cell with these numbers, which are traced; the rest as in the first cell.
      width: cells in one call of the program; default all.
      cells_axis: ``"map"`` (one after another), ``"vmap"`` (all at once) or ``"auto"``: one after another on a CPU,
        all of whose cores a single cell occupies.
      mesh: devices that share the cells, whose number need not be a multiple of the devices'; a cell is on one device.

    Raises:
      ValueError: if the settings cannot be run.
    """
    put = functools.partial(jax.device_put, device=everywhere(mesh))
    examples = put(examples_of(settings[0]))
    return BatchSimulation(
        first=settings[0],
        mesh=mesh,
        spent=[privacy.spent_by(cell) for cell in settings],
        **trace_batch(settings, numbers, rebuild, examples, width, cells_axis, mesh, put, share_of(mesh))._asdict(),
    )


def _row(cell: int, tree: Any) -> Any:
    """The entry of one cell in a tree with a leading axis of cells."""
    return jax.tree.map(lambda x: x[cell], tree)


def _of(cell: int, states: RunState) -> Any:
    """The state of one cell, on the host."""
    return jax.device_get(_row(cell, states))


def _stacked_rows(*rows: Any) -> Any:
    """The leaves of several states as one with a leading axis, on the host unless they are random keys."""
    is_key = jnp.issubdtype(jnp.result_type(rows[0]), jax.dtypes.prng_key)
    return jnp.stack(rows) if is_key else np.stack([np.asarray(row) for row in rows])
