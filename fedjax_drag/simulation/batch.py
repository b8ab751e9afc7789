"""Many runs as one program: cells that differ in numbers, seeds and the split of the data share one compilation.

The runs of all cells are stacked: a cell's numbers (a rule's ``c``, a step size, the strength of an attack) are rows of
the program's inputs, as are its random key, its clients' index lists and its malicious clients. Cells can share a
program exactly if their runs have the same ``jax.tree.structure``, and they share one copy of the examples.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag import checks
from fedjax_drag.simulation.client_cost import measure_seconds
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.devices.placement import Devices, everywhere, platform_of
from fedjax_drag.simulation.driver import Schedule, Track, drive
from fedjax_drag.simulation.model.start import Start
from fedjax_drag.simulation.model.trainable import joined
from fedjax_drag.simulation.planning import initial_params, memory, privacy
from fedjax_drag.simulation.planning.early_stopping import Reason
from fedjax_drag.simulation.planning.outline import Outline, outline
from fedjax_drag.simulation.planning.setup import federate, run_of
from fedjax_drag.simulation.planning.shapes import shape_of
from fedjax_drag.simulation.program import programs
from fedjax_drag.simulation.program.clients_axis import Walk, make_mapper
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import TIMED_STEPS, Metrics, Totals, own_examples
from fedjax_drag.simulation.result import Result
from fedjax_drag.simulation.run import Run, RunState
from fedjax_drag.simulation.runner import Evaluation
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch

Examples = tuple[Batch, tuple[Batch, Batch | None]]
"""What all cells share: training examples, and those of evaluations."""


class Cells(NamedTuple):
    """The inputs in which cells differ; every leaf has a leading axis ``[C]``.

    Attributes:
      run: with None in the place of arrays that all cells have in common.
      federation: without its training examples.
      key: from which all randomness is derived.
    """

    run: Run
    federation: Federation
    key: Any


class Over(NamedTuple):
    """The way over cells.

    Attributes:
      walk: over those of a device.
      mesh: devices that share them, or None.
    """

    walk: Walk
    mesh: Mesh | None

    def __call__(self, one: Callable[[Any, Any], Any], shared: Any, cells: Any) -> Any:
        """``one(shared, cell)`` of every cell, stacked."""
        out = make_mapper(self.walk, self.mesh)(one, shared, cells)
        return out if self.mesh is None else jax.lax.with_sharding_constraint(out, share_of(self.mesh))


def _init_cells(over: Over, common: Run, cells: Cells, given: Start | None) -> RunState:
    """The states before the first round, from the same start ``given`` or from what each cell draws."""

    def one(shared: tuple[Run, Start | None], cell: Cells) -> RunState:
        return programs.start(joined(cell.run, shared[0]), cell.key, shared[1])

    return over(one, (common, given), cells)


@functools.cache
def init_cells(platform: str) -> Any:
    """:func:`_init_cells`, compiled as :func:`~fedjax_drag.simulation.program.programs.init_on` is."""
    return jax.jit(_init_cells, static_argnums=0, compiler_options=programs.quickly(platform))


@functools.partial(jax.jit, static_argnums=0, donate_argnames="states")
def advance_cells(
    over: Over, common: Run, train: Batch, cells: Cells, states: RunState, totals: Totals, stop: Any
) -> tuple[RunState, Metrics, Totals]:
    """Rounds of every cell up to ``stop``; see :func:`~fedjax_drag.simulation.program.programs.rounds`."""

    def one(shared: Any, entry: tuple[Cells, RunState, Totals]) -> tuple[RunState, Metrics, Totals]:
        (common, train, start, stop), (cell, state, totals) = shared, entry
        federation = cell.federation._replace(train=train)
        run, state = joined(cell.run, common), state._replace(round=start)
        return programs.rounds(run, federation, cell.key, state, totals, stop)

    # All cells are in the same round. Given once for all, it keeps the loop over rounds free of selections.
    return over(one, (common, train, states.round[0], stop), (cells, states, totals))


@functools.partial(jax.jit, static_argnums=0)
def evaluate_cells(
    over: Over, common: Run, cells: Cells, states: RunState, held_out: tuple[Batch, Batch | None], train: Batch | None
) -> dict[str, jax.Array]:
    """The evaluation of every cell; ``train`` is None unless clients are evaluated."""

    def one(shared: Any, entry: tuple[Cells, RunState]) -> dict[str, jax.Array]:
        (common, (test, validation), train), (cell, state) = shared, entry
        own = own_examples(cell.federation._replace(train=train), state)
        return programs.evaluation(joined(cell.run, common), state, test, validation, own)

    return over(one, (common, held_out, train), (cells, states))


class LoweredBatch(NamedTuple):
    """The programs of a batch of cells, traced."""

    init: Any
    advance: Any
    evaluate: Any


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
      first: the settings of the first cell, with what all have in common.
      whole: all cells, on the host.
      examples: on the device.
      over: the way over cells.
      width: how many run in one call of the program.
      given: from which all cells start, on the device; None to draw it for each.
      outlines: what is known of each cell's run from shapes.
      spent: privacy spent after some rounds, of each cell.
    """

    first: Settings
    whole: "Whole"
    examples: Examples
    over: Over
    width: int
    given: Start | None
    outlines: tuple[Outline, ...]
    spent: Sequence[privacy.Spent]

    @property
    def walk(self) -> Walk:
        """The way over the clients of a cell's round."""
        return self.whole.runs[0].walk

    @property
    def mesh(self) -> Mesh | None:
        """Devices that share the cells, or None."""
        return self.over.mesh

    @property
    def mesh_devices(self) -> int:
        """How many devices share the clients of a cell: the devices of ``mesh`` share the cells."""
        return 1

    @property
    def shapes(self) -> RunState:
        """Shapes and dtypes of one cell's state."""
        return self.outlines[0].shapes

    @functools.cached_property
    def lowered(self) -> LoweredBatch:
        """The programs for :attr:`width` cells, traced."""
        cells = shapes_of(self.whole.at([0]), self.width, share_of(self.mesh))
        return lower_cells(self.over, self.whole.common, cells, self.examples, self.given, self.shapes)

    @functools.cached_property
    def compile_seconds(self) -> float:
        """Seconds that the compilation of the programs took, at the first access.

        Raises:
          MemoryError: :attr:`width` cells do not fit the memory.
        """
        started = time.perf_counter()
        memory.make_room()
        train, held_out = self.examples
        _, advance, evaluate = memory.compiled(self.lowered)
        whole = [(memory.needed(advance), train), (memory.needed(evaluate), (held_out, self._examined))]
        memory.check(whole, 0, [f"width below {self.width}"])
        return time.perf_counter() - started

    def compile(self) -> "BatchSimulation":
        """Compiles the programs and returns the batch itself.

        Raises:
          MemoryError: :attr:`width` cells do not fit the memory.
        """
        _ = self.compile_seconds
        return self

    @property
    def _examined(self) -> Batch | None:
        return None if self.whole.federations[0].held_out is None else self.examples[0]

    @functools.cached_property
    def seconds_per_step(self) -> float | None:
        """Measured time of a client's local step in the first cell, run alone; None without ``time_clients``."""
        if not self.first.time_clients:
            return None
        federation = self.whole.federations[0]._replace(train=self.examples[0])
        own = self.whole.runs[0], federation, self.whole.keys[0]
        state = programs.init(own[0], own[2], None)
        return measure_seconds(programs.client, *own, state) / TIMED_STEPS

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
        first, common, (train, held_out) = self.first, self.whole.common, self.examples
        # The program has one width: what is missing is filled up with copies of the last cell, which are not reported.
        padded = [*which, *[which[-1]] * (self.width - len(which))]
        compile_seconds, seconds_per_step = self.compile_seconds, self.seconds_per_step
        cells = jax.device_put(self.whole.at(padded), share_of(self.mesh))
        make = init_cells(jax.default_backend())
        states = make(self.over, common, cells, self.given) if initial is None else self._stacked(initial)

        started = time.perf_counter()
        reports = first.reports_clients, first.stop_on_divergence
        tracks = [Track(self.outlines[place].cost, self.spent[place], *reports) for place in which]
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
            totals = for_each(self.width, programs.no_totals(self.whole.runs[0].may_be_absent))
            advance = functools.partial(advance_cells, self.over, common, train, cells)
            evaluate = lambda states: evaluate_cells(self.over, common, cells, states, held_out, self._examined)
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
        return jax.device_put(jax.tree.map(_stacked_rows, *padded), share_of(self.mesh))


class Whole(NamedTuple):
    """All cells of a batch, on the host.

    Attributes:
      runs: of each cell, with None in the place of arrays that all have in common.
      common: these arrays, and None in the place of everything else.
      federations: of each, without training examples, index lists padded to a common length.
      keys: of each.
    """

    runs: tuple[Run, ...]
    common: Run
    federations: tuple[Federation, ...]
    keys: tuple[Any, ...]

    def at(self, places: Sequence[int]) -> Cells:
        """Cells stacked."""

        def stacked(parts: Sequence[Any]) -> Any:
            return jax.tree.map(lambda *leaves: _stacked_inputs(leaves), *[parts[place] for place in places])

        return Cells(stacked(self.runs), stacked(self.federations), jnp.stack([self.keys[place] for place in places]))


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
        not in whether they are given); see :func:`likeness`.
      width: cells in one call of the program; default all.
      cells_axis: ``"map"`` (one after another), ``"vmap"`` (all at once) or ``"auto"``: one after another on a CPU,
        all of whose cores a single cell occupies.
      mesh: devices that share the cells, whose number need not be a multiple of the devices'; a cell is on one device.

    Raises:
      ValueError: if the settings cannot be run, or not as one program.
    """
    whole, over, width = gathered(settings, width, cells_axis, mesh)
    first = settings[0]
    examples = jax.device_put(examples_of(first), everywhere(mesh))
    outlines = outlines_of(whole, examples[0])
    given = initial_params.given(first.initial_params, outlines[0].shapes, first.model)
    given = jax.device_put(given, everywhere(mesh))
    spent = [privacy.spent_by(cell) for cell in settings]
    batch = BatchSimulation(first, whole, examples, over, width, given, outlines, spent)
    _ = batch.lowered  # what cannot be traced is refused here
    return batch


def gathered(
    settings: Sequence[Settings], width: int | None, cells_axis: str, mesh: Mesh | None, devices: Devices | None = None
) -> tuple[Whole, Over, int]:
    """The cells of a batch, the way over them, and how many of them run at a time.

    Args:
      settings: as for :func:`prepare_batch`, as are ``width``, ``cells_axis`` and ``mesh``.
      width: as there.
      cells_axis: as there.
      mesh: as there.
      devices: for which the cells are lowered only; None for those of this process.
    """
    checks.one_of("cells_axis", cells_axis, ("auto", "vmap", "map"))
    if cells_axis == "auto":
        cells_axis = "map" if platform_of(devices) == "cpu" else "vmap"
    sharing = mesh.size if mesh else 1
    width = -(-min(width or len(settings), len(settings)) // sharing) * sharing
    runs = [run_of(one, devices) for one in settings]
    if len({run.num_byzantine for run in runs}) > 1:
        runs = [dataclasses.replace(run, num_byzantine=None) for run in runs]
    if any(likeness(*one) != likeness(settings[0], runs[0]) for one in zip(settings, runs, strict=True)):
        raise ValueError("cells differ in more than numbers, seeds and the split of the data: cannot be one program")
    federations = _padded([federate(one)._replace(train=()) for one in settings])
    keys = tuple(jax.random.key(one.seed) for one in settings)
    return Whole(*_divided(runs), tuple(federations), keys), Over(Walk(cells_axis), mesh), width


def likeness(settings: Settings, run: Run | None = None) -> Hashable:
    """Equal for cells that can share a program.

    Args:
      settings: of a cell.
      run: of the same, where it is known.

    Raises:
      ValueError: if the settings cannot be run.
    """
    run = run or run_of(settings)
    if "num_byzantine" not in run.algorithm.needs:
        run = dataclasses.replace(run, num_byzantine=None)
    leaves, structure = jax.tree.flatten(run)
    data, trace = settings.data, settings.availability_trace
    absent = None if trace is None else trace.shape, bool(settings.dropout_rate)
    told = settings.num_rounds, settings.eval_every, settings.rounds_per_compile, settings.time_clients
    told += settings.stop_on_divergence, bool(settings.evaluate_clients), settings.byzantine_of, settings.client_state
    start = settings.initial_params
    same = [id(part) for part in (data.train, data.test, data.validation)]
    start = start if isinstance(start, str) else id(start)
    return structure, tuple(map(shape_of, leaves)), absent, told, start, tuple(same)


def outlines_of(whole: Whole, train: Any) -> tuple[Outline, ...]:
    """What is known of each cell's run from shapes."""
    return tuple(
        outline(joined(run, whole.common), federation._replace(train=train), key, DEVICE)
        for run, federation, key in zip(whole.runs, whole.federations, whole.keys, strict=True)
    )


def examples_of(first: Settings) -> Examples:
    """The examples that all cells share."""
    return first.data.train, (first.data.test, first.data.validation)


def shapes_of(cells: Cells, width: int, sharding: Any) -> Cells:
    """Shapes of so many cells like these."""

    def leaf(x: Any) -> jax.ShapeDtypeStruct:
        like = shape_of(x)
        return like.update(shape=(width, *like.shape[1:]), sharding=sharding)

    return jax.tree.map(leaf, cells)


def lower_cells(
    over: Over,
    common: Run,
    cells: Cells,
    examples: Examples,
    given: Start | None,
    shapes: RunState,
    platform: str | None = None,
) -> LoweredBatch:
    """The programs for cells of these shapes, traced.

    Args:
      over: the way over cells.
      common: arrays that all runs have in common.
      cells: shapes.
      examples: arrays or shapes.
      given: what all start from, or None.
      shapes: of one cell's state.
      platform: of the devices; default that of this process.
    """
    train, held_out = examples
    width, sharding = cells.key.shape[0], cells.key.sharding
    states = jax.tree.map(lambda x: jax.ShapeDtypeStruct((width, *x.shape), x.dtype, sharding=sharding), shapes)
    totals = for_each(width, programs.no_totals(cells.run.may_be_absent))
    examined = None if cells.federation.held_out is None else train
    return LoweredBatch(
        init_cells(platform or jax.default_backend()).lower(over, common, cells, given),
        advance_cells.lower(over, common, train, cells, states, totals, np.int32(1)),
        evaluate_cells.lower(over, common, cells, states, held_out, examined),
    )


def _divided(runs: Sequence[Run]) -> tuple[tuple[Run, ...], Run]:
    """Runs without the arrays that all have in common, and these arrays; numbers are every run's own."""

    def is_common(*leaves: Any) -> bool:
        arrays = np.ndim(leaves[0]) > 0
        return arrays and all(x is leaves[0] or np.array_equal(x, leaves[0]) for x in leaves[1:])

    common = jax.tree.map(is_common, *runs)
    own = tuple(jax.tree.map(lambda x, taken: None if taken else x, run, common) for run in runs)
    return own, jax.tree.map(lambda x, taken: x if taken else None, runs[0], common)


def _padded(federations: Sequence[Federation]) -> list[Federation]:
    """Federations on the host, index lists padded to a common length."""
    federations = list(federations)
    for name in ("rows", "root_row"):
        longest = max(getattr(one, name).shape[-1] for one in federations)
        federations = [one._replace(**{name: _longer(getattr(one, name), longest)}) for one in federations]
    held_out = [one.held_out for one in federations if one.held_out is not None]
    if held_out:
        longest = max(len(one.examples) for one in held_out)
        padded = [one._replace(examples=_longer(one.examples, longest)) for one in held_out]
        federations = [one._replace(held_out=own) for one, own in zip(federations, padded, strict=True)]
    return federations


def _longer(rows: Any, length: int) -> np.ndarray:
    missing = length - rows.shape[-1]
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])


def for_each(width: int, totals: Totals) -> Totals:
    """Totals of no rounds for so many cells."""
    return jax.tree.map(lambda total: np.zeros(width, total.dtype), totals)


def share_of(mesh: Mesh | None) -> Any:
    """The sharding of what has a leading axis of cells; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def _row(cell: int, tree: Any) -> Any:
    """The entry of one cell in a tree with a leading axis of cells."""
    return jax.tree.map(lambda x: x[cell], tree)


def _of(cell: int, states: RunState) -> Any:
    """The state of one cell, on the host."""
    return jax.device_get(_row(cell, states))


def _stacked_inputs(leaves: Sequence[Any]) -> Any:
    """Inputs of several cells with a leading axis; numbers of runs stay Python's, which give way to other dtypes."""
    if isinstance(leaves[0], np.ndarray | np.generic):
        return np.stack(leaves)
    return jnp.stack([jnp.asarray(leaf) for leaf in leaves])


def _stacked_rows(*rows: Any) -> Any:
    """The leaves of several states as one with a leading axis, on the host unless they are random keys."""
    is_key = jnp.issubdtype(jnp.result_type(rows[0]), jax.dtypes.prng_key)
    return jnp.stack(rows) if is_key else np.stack([np.asarray(row) for row in rows])
