"""Cells of a batch: the inputs in which runs differ, and all their runs as one program, traced."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag import checks
from fedjax_drag.simulation.client_cost import ClientCost, cost_of, messages_of, with_traffic
from fedjax_drag.simulation.devices.placement import Devices, platform_of
from fedjax_drag.simulation.devices.program_cache import jit_for_one_call
from fedjax_drag.simulation.model.start import Start
from fedjax_drag.simulation.planning import initial_params
from fedjax_drag.simulation.planning.arguments import check_benign
from fedjax_drag.simulation.planning.setup import federate, programs_of
from fedjax_drag.simulation.program.clients_axis import Mapper, Walk, make_mapper
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import (
    Metrics,
    Programs,
    Totals,
    own_examples,
)
from fedjax_drag.simulation.program.work import RunState
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch

Numbers = Mapping[str, Any]
"""Scalars by name in which one cell differs from others."""


class Cells(NamedTuple):
    """The inputs in which cells differ; every leaf has a leading axis ``[C]``.

    Attributes:
      numbers: by name.
      federation: without its training examples.
      key: from which all randomness is derived.
    """

    numbers: dict[str, Any]
    federation: Federation
    key: Any


class LoweredBatch(NamedTuple):
    """The programs of a batch of cells, traced; every ``state`` and ``cell`` has a leading axis of cells.

    Attributes:
      init: ``(cells, given) -> states``, from the same start ``given``, or from what each cell draws.
      advance: ``(train, cells, states, totals, stop) -> (states, metrics, totals)``, see :class:`Programs`.
      evaluate: ``(cells, states, held_out, train) -> metrics``; ``train`` is None unless clients are evaluated.
    """

    init: Any
    advance: Any
    evaluate: Any


@dataclasses.dataclass(frozen=True)
class CellPrograms:
    """One cell's run as pure functions of the cell, repeated over cells.

    Attributes:
      rebuild: the settings of a cell with the numbers that it has.
      walk: the way over the clients of a round.
      over_cells: maps a function of one cell over a leading axis.
      num_byzantine: of every cohort, which rules are told; None where it differs between the cells.
    """

    rebuild: Callable[[Numbers], Settings]
    walk: Walk
    over_cells: Mapper
    num_byzantine: int | None

    def of(self, cell: Cells) -> Programs:
        """The run of one cell, without a leading axis."""
        settings = dataclasses.replace(self.rebuild(cell.numbers), **self.walk._asdict())
        return programs_of(settings, None, self.num_byzantine)[0]

    def init(self, cells: Cells, given: Start | None) -> RunState:
        """The states before the first round."""
        return self.over_cells(lambda given, cell: self.of(cell).init(cell.key, given), given, cells)

    def advance(
        self, train: Batch, cells: Cells, states: RunState, totals: Totals, stop: Any
    ) -> tuple[RunState, Metrics, Totals]:
        """Rounds up to ``stop``."""
        # All cells are in the same round. Given once for all, it keeps the loop over rounds free of selections.
        return self.over_cells(self._advance_one, (train, states.round[0], stop), (cells, states, totals))

    def _advance_one(
        self, shared: tuple[Batch, Any, Any], entry: tuple[Cells, RunState, Totals]
    ) -> tuple[RunState, Metrics, Totals]:
        (train, start, stop), (cell, state, totals) = shared, entry
        federation = cell.federation._replace(train=train)
        return self.of(cell).advance(federation, cell.key, state._replace(round=start), totals, stop)

    def evaluate(
        self, cells: Cells, states: RunState, held_out: tuple[Batch, Batch | None], train: Batch | None
    ) -> dict[str, jax.Array]:
        """Metrics on the test examples, on the validation examples where there are any, and on the clients' own."""
        return self.over_cells(self._evaluate_one, (held_out, train), (cells, states))

    def _evaluate_one(
        self, shared: tuple[tuple[Batch, Batch | None], Batch | None], entry: tuple[Cells, RunState]
    ) -> dict[str, jax.Array]:
        (held_out, train), (cell, state) = shared, entry
        own = own_examples(cell.federation._replace(train=train), state)
        return self.of(cell).evaluate(state, *held_out, own)


def examples_of(first: Settings) -> tuple[Batch, tuple[Batch, Batch | None]]:
    """The examples that all cells share: of training, and of evaluations."""
    return first.data.train, (first.data.test, first.data.validation)


class TracedBatch(NamedTuple):
    """What is found while the cells of a batch are traced; the fields are those of :class:`BatchSimulation`."""

    cells: Cells
    train: Batch
    held_out: tuple[Batch, Batch | None]
    width: int
    programs: Programs
    walk: Walk
    given: Start | None
    lowered: LoweredBatch
    costs: tuple[ClientCost, ...]


def trace_batch(
    settings: Sequence[Settings],
    numbers: Sequence[Numbers],
    rebuild: Callable[[Numbers], Settings],
    examples: tuple[Batch, tuple[Batch, Batch | None]],
    width: int | None,
    cells_axis: str,
    mesh: Mesh | None,
    put: Callable[[Any], Any],
    split: Any,
    devices: Devices | None = None,
) -> TracedBatch:
    """:func:`prepare_batch` of examples that are on the devices.

    Args:
      settings: as there, as are ``numbers``, ``rebuild``, ``width``, ``cells_axis`` and ``mesh``.
      numbers: as there.
      rebuild: as there.
      examples: of :func:`examples_of`, as ``put`` returns them.
      width: as there.
      cells_axis: as there.
      mesh: as there.
      put: what places an array that all cells share, or makes a shape of it.
      split: sharding of what has a leading axis of cells, or None.
      devices: for which the cells are lowered only; None for those of this process.
    """
    checks.one_of("cells_axis", cells_axis, ("auto", "vmap", "map"))
    if cells_axis == "auto":
        cells_axis = "map" if platform_of(devices) == "cpu" else "vmap"
    first, (train, held_out), sharing = settings[0], examples, mesh.size if mesh else 1
    width = -(-min(width or len(settings), len(settings)) // sharing) * sharing
    cells = _stack(settings, numbers)
    numbers_told = {one.num_byzantine_in_cohort for one in settings}
    told = numbers_told.pop() if len(numbers_told) == 1 else None
    alone, work = programs_of(first, None, told, devices)
    walk = work.execution.walk
    programs = CellPrograms(rebuild, walk, make_mapper(Walk(cells_axis), mesh), told)
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (cells.federation, cells.key))
    federation = own[0]._replace(train=train)
    state = jax.eval_shape(alone.init, own[1])
    given = put(initial_params.given(first.initial_params, state))
    totals, platform = for_each(width, alone.totals), platform_of(devices)
    lowered = _lower(programs, cells, totals, (train, held_out, given), split, platform)
    check_benign(first, alone, federation, own[1], state)
    messages = messages_of(first.algorithm, work, alone, federation, own[1], state)
    cost = cost_of(first.algorithm, work, messages)
    # Cells may differ in how much they compress.
    costs = tuple(with_traffic(cost, messages, one.compression, one.downlink_compression) for one in settings)
    return TracedBatch(cells, train, held_out, width, alone, walk, given, lowered, costs)


def _lower(
    programs: CellPrograms,
    cells: Cells,
    totals: Totals,
    shared: tuple[Batch, tuple[Batch, Batch | None], Start | None],
    split: Any,
    platform: str,
) -> LoweredBatch:
    """The programs for cells such as these, traced.

    Args:
      programs: of one cell.
      cells: of which only shapes count.
      totals: of no rounds, for as many cells as the programs are for.
      shared: training examples, examples of evaluations and a start.
      split: sharding of what has a leading axis of cells, or None.
      platform: of the devices.
    """
    train, held_out, given = shared
    width = len(totals.diverged_at)

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((width, *x.shape[1:]), x.dtype, sharding=split), tree)

    example = shapes(cells)
    examined = None if cells.federation.held_out is None else train
    states = shapes(jax.eval_shape(programs.init, example, given))
    advance = jax.jit(programs.advance, donate_argnames="states", out_shardings=split)
    return LoweredBatch(
        jit_for_one_call(programs.init, platform, out_shardings=split).lower(example, given),
        advance.lower(train, example, states, totals, np.int32(1)),
        jax.jit(programs.evaluate, out_shardings=split).lower(example, states, held_out, examined),
    )


def _stack(settings: Sequence[Settings], numbers: Sequence[Numbers]) -> Cells:
    """Cells on the host, index lists padded to a common length."""
    federations = [federate(one)._replace(train=()) for one in settings]
    _check_absence(federations)
    for name in ("rows", "root_row"):
        longest = max(getattr(one, name).shape[-1] for one in federations)
        federations = [one._replace(**{name: _padded(getattr(one, name), longest)}) for one in federations]
    held_out = [one.held_out for one in federations if one.held_out is not None]
    if held_out:
        longest = max(len(one.examples) for one in held_out)
        padded = [one._replace(examples=_padded(one.examples, longest)) for one in held_out]
        federations = [one._replace(held_out=own) for one, own in zip(federations, padded, strict=True)]
    stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *federations)
    columns = {name: np.asarray([own[name] for own in numbers], np.float32) for name in numbers[0]}
    return Cells(columns, stacked, jnp.stack([jax.random.key(one.seed) for one in settings]))


def _check_absence(federations: Sequence[Federation]) -> None:
    """Refuses cells of which only some have clients that may be absent, or traces of different lengths."""
    for name in ("availability", "dropout_rate"):
        shapes = {getattr(getattr(one, name), "shape", None) for one in federations}
        if len(shapes) > 1:
            raise ValueError(f"{name}: must be given for every cell or for none, with as many rounds in each")


def for_each(width: int, totals: Totals) -> Totals:
    """Totals of no rounds for so many cells."""
    return jax.tree.map(lambda total: np.zeros(width, total.dtype), totals)


def _padded(rows: Any, length: int) -> np.ndarray:
    missing = length - rows.shape[-1]
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])


def share_of(mesh: Mesh | None) -> Any:
    """The sharding of what has a leading axis of cells; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names))
