"""Many runs as one program: cells that differ in numbers, seeds and the split of the data share one compilation.

A cell's numbers (a rule's ``c``, a step size, the strength of an attack) enter the program as inputs, and so do its
random key, its clients' index lists and its malicious clients. The examples are there once for all.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag import checks
from fedjax_drag.simulation.devices import nans
from fedjax_drag.simulation.devices.placement import everywhere
from fedjax_drag.simulation.engine import Evaluation, history_row
from fedjax_drag.simulation.planning import memory
from fedjax_drag.simulation.planning.setup import federate, programs_of
from fedjax_drag.simulation.program.client_cost import ClientCost, measure_seconds
from fedjax_drag.simulation.program.clients_axis import Walk, make_mapper
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import TIMED_STEPS, Programs, cost_of, no_totals
from fedjax_drag.simulation.program.round import RunState
from fedjax_drag.simulation.result import Result, client_seconds, stack_history
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch

Numbers = Mapping[str, Any]
"""By name, what one cell has where others have something else: scalars."""


class Cells(NamedTuple):
    """What tells cells apart; every leaf has a leading axis ``[C]``.

    Attributes:
      numbers: by name.
      federation: without its training examples.
      key: from which all randomness is derived.
    """

    numbers: dict[str, Any]
    federation: Federation
    key: Any


class BatchEvaluation(NamedTuple):
    """What a callback receives after each evaluation, which all cells have at once.

    Attributes:
      round: rounds done.
      num_rounds: rounds of every run.
      rows: by place, the rows of the histories; of a cell that has diverged and stopped there is none.
      states: of the runs, leading axis ``[C]``; their buffers are given to the next rounds.
      diverged_at: by place, the first round after which a parameter of a cell was not finite.
    """

    round: int
    num_rounds: int
    rows: dict[int, dict[str, Any]]
    states: RunState
    diverged_at: dict[int, int]

    def of(self, cell: int, with_state: bool = True) -> Evaluation:
        """The evaluation of one cell, its state on the host if it is asked for."""
        state: Any = _of(cell, self.states) if with_state else None
        return Evaluation(self.round, self.num_rounds, self.rows[cell], state, self.diverged_at.get(cell))


@dataclasses.dataclass(frozen=True)
class BatchSimulation:
    """Checked and traced runs of ``C`` cells; :meth:`run` takes up to :attr:`width` of them at a time.

    Attributes:
      first: the settings of the first cell, with what all have in common.
      cells: all of them, on the host.
      train: training examples on the device.
      test: test examples on the device.
      width: how many run in one call of the program.
      mesh: devices that share them, or None.
      programs: one cell's run as pure functions, with the numbers of the first.
      walk: the way over the clients of a round.
      lowered: ``init(cells)``, ``advance(train, cells, states, totals, stop)`` and ``evaluate(cells, states, test)``
        for :attr:`width` cells, traced.
      cost: what the method asks of one client.
    """

    first: Settings
    cells: Cells
    train: Batch
    test: Batch
    width: int
    mesh: Mesh | None
    programs: Programs
    walk: Walk
    lowered: tuple[Any, Any, Any]
    cost: ClientCost

    @property
    def shapes(self) -> RunState:
        """Shapes and dtypes of one cell's state."""
        return jax.eval_shape(self.programs.init, jax.random.key(0))

    @functools.cached_property
    def compiled(self) -> tuple[Any, ...]:
        """The three programs of :attr:`lowered`, and the seconds that they took to compile."""
        started = time.perf_counter()
        init, advance, evaluate = (program.compile() for program in self.lowered)
        memory.check([(advance, self.train), (evaluate, self.test)], 0, [f"width below {self.width}"])
        return init, advance, evaluate, time.perf_counter() - started

    def compile(self) -> "BatchSimulation":
        """This, ready to run.

        Raises:
          MemoryError: :attr:`width` cells do not fit the memory.
        """
        _ = self.compiled
        return self

    @functools.cached_property
    def seconds_per_step(self) -> float | None:
        """Measured time of a client's local step, of the first cell by itself; None if it is not asked for."""
        if not self.first.time_clients:
            return None
        cell = self._taken([0])
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
    ) -> list[Result]:
        """Runs cells to the last round, or each to the evaluation that finds parameters that are not finite.

        Args:
          which: their places, up to :attr:`width` of them.
          callbacks: each is called on the host after every evaluation.
          initial: states to continue from, all after the same round; default a fresh start.

        Returns:
          A result for each; running time and compilation are shared out evenly. Histories start after ``initial``.
        """
        checks.count("cells", len(which), 1, self.width)
        # The program has one width: what is missing is filled up with the last cell, whose copies nobody looks at.
        padded = [*which, *[which[-1]] * (self.width - len(which))]
        cells = self._taken(padded)
        init, advance, evaluate, compile_seconds = self.compiled
        seconds_per_step = self.seconds_per_step
        states = init(cells) if initial is None else self._stacked(initial)

        started = time.perf_counter()
        histories: list[list[dict[str, Any]]] = [[] for _ in which]
        diverged_at: dict[int, int] = {}
        stopped: dict[int, RunState] = {}
        every, most = self.first.eval_every, self.first.rounds_per_compile or self.first.eval_every
        done = int(states.round[0])
        while done < self.first.num_rounds and len(stopped) < len(which):
            before, target = done, min(self.first.num_rounds, (done // every + 1) * every)
            metrics, totals = {}, _no_totals(self.width)
            with nans.located(done + 1, target):
                while done < target:
                    done = min(target, done + most)
                    states, metrics, totals = advance(self.train, cells, states, totals, np.int32(done))
                found = jax.device_get((metrics, totals, evaluate(cells, states, self.test)))
            rows = {}
            for place in [place for place in range(len(which)) if place not in stopped]:
                metrics, totals, evaluated = jax.tree.map(lambda x, place=place: x[place], found)
                rows[place] = history_row(done, done - before, metrics, totals, evaluated, self.cost)
                histories[place].append(rows[place])
                if totals["diverged_at"]:
                    diverged_at.setdefault(place, int(totals["diverged_at"]))
            for callback in callbacks:
                callback(BatchEvaluation(done, self.first.num_rounds, rows, states, diverged_at))
            if self.first.stop_on_divergence:
                stopped |= {place: _of(place, states) for place in diverged_at if place in rows}
        jax.block_until_ready(states)
        seconds = (time.perf_counter() - started) / len(which)
        return [
            self._result(
                history,
                stopped[place] if place in stopped else jax.tree.map(lambda x, place=place: x[place], states),
                (seconds, compile_seconds / len(which), seconds_per_step),
                diverged_at.get(place),
            )
            for place, history in enumerate(histories)
        ]

    def _result(self, history, state: RunState, times, diverged_at: int | None) -> Result:
        seconds, compile_seconds, seconds_per_step = times
        columns = stack_history(history)
        if seconds_per_step is not None and columns:
            columns |= {"client_seconds": client_seconds(columns, seconds_per_step)}
        return Result(state.params, columns, state, seconds, compile_seconds, self.cost, seconds_per_step, diverged_at)

    def _taken(self, places: Sequence[int]) -> Cells:
        taken = jax.tree.map(lambda x: x[np.asarray(places)], self.cells)
        return jax.device_put(taken, _share_of(self.mesh) if len(places) == self.width else None)

    def _stacked(self, initial: Sequence[RunState]) -> RunState:
        rounds = sorted({int(state.round) for state in initial})
        if len(rounds) > 1:
            raise ValueError(f"initial: states after rounds {rounds}: must all be after the same round")
        padded = [*initial, *[initial[-1]] * (self.width - len(initial))]
        stacked = jax.tree.map(lambda *rows: np.stack([np.asarray(row) for row in rows]), *padded)
        return jax.device_put(stacked, _share_of(self.mesh))


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
        clients), in who is malicious (but not in whether anybody is), and in ``numbers``.
      numbers: of each cell, those in which they differ; the same names everywhere.
      rebuild: the settings of a cell with these numbers, which are traced; the rest as in the first cell.
      width: cells in one call of the program; default all.
      cells_axis: ``"map"`` (one after another), ``"vmap"`` (all at once) or ``"auto"``: one after another on a CPU,
        whose cores a single cell keeps busy.
      mesh: devices that share the cells, which need not be a multiple of them; the clients of a cell stay together.

    Raises:
      ValueError: if the settings cannot be run.
    """
    checks.one_of("cells_axis", cells_axis, ("auto", "vmap", "map"))
    if cells_axis == "auto":
        cells_axis = "map" if jax.default_backend() == "cpu" else "vmap"
    first, devices = settings[0], mesh.size if mesh else 1
    width = -(-min(width or len(settings), len(settings)) // devices) * devices
    shared, split = everywhere(mesh), _share_of(mesh)
    train, test = jax.device_put((first.data.train, first.data.test), shared)
    cells = _stack(settings, numbers)
    over_cells = make_mapper(cells_axis, None, mesh)
    alone, work = programs_of(first, None)
    walk = work.walk._asdict()

    def programs(cell: Cells) -> Programs:
        return programs_of(dataclasses.replace(rebuild(cell.numbers), **walk), None)[0]

    def init(cells):
        return over_cells(lambda _, cell: programs(cell).init(cell.key), (), cells)

    def advance(train, cells, states, totals, stop):
        def one(shared, entry):
            (train, start, stop), (cell, state, totals) = shared, entry
            # All cells are in the same round. Said once for all, it keeps the loop over rounds free of selections.
            state = state._replace(round=start)
            return programs(cell).advance(cell.federation._replace(train=train), cell.key, state, totals, stop)

        return over_cells(one, (train, states.round[0], stop), (cells, states, totals))

    def evaluate(cells, states, test):
        return over_cells(lambda test, entry: programs(entry[0]).evaluate(entry[1], test), test, (cells, states))

    def shapes(tree, sharding):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((width, *x.shape[1:]), x.dtype, sharding=sharding), tree)

    example = shapes(cells, split)
    states = shapes(jax.eval_shape(init, example), split)
    totals = _no_totals(width)
    lowered = (
        jax.jit(init, out_shardings=split).lower(example),
        jax.jit(advance, donate_argnames="states", out_shardings=split).lower(
            train, example, states, totals, np.int32(1)
        ),
        jax.jit(evaluate, out_shardings=split).lower(example, states, test),
    )
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (cells.federation, cells.key))
    federation = own[0]._replace(train=train)
    cost = cost_of(first.algorithm, work, alone, federation, own[1], jax.eval_shape(alone.init, own[1]))
    return BatchSimulation(first, cells, train, test, width, mesh, alone, work.walk, lowered, cost)


def _stack(settings: Sequence[Settings], numbers: Sequence[Numbers]) -> Cells:
    """Cells on the host, index lists padded to a common length."""
    federations = [federate(one)._replace(train=()) for one in settings]
    for name in ("rows", "root_row"):
        longest = max(getattr(one, name).shape[-1] for one in federations)
        federations = [one._replace(**{name: _padded(getattr(one, name), longest)}) for one in federations]
    stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *federations)
    columns = {name: np.asarray([own[name] for own in numbers], np.float32) for name in numbers[0]}
    return Cells(columns, stacked, jnp.stack([jax.random.key(one.seed) for one in settings]))


def _no_totals(width: int) -> dict[str, np.ndarray]:
    return {name: np.zeros(width, total.dtype) for name, total in no_totals().items()}


def _padded(rows: Any, length: int) -> np.ndarray:
    missing = length - rows.shape[-1]
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])


def _of(cell: int, states: RunState) -> Any:
    """The state of one cell, on the host."""
    return jax.tree.map(lambda x: np.asarray(x[cell]), states)


def _share_of(mesh: Mesh | None) -> Any:
    """The sharding of what has a leading axis of cells; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names))
