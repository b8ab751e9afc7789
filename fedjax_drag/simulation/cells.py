"""Cells of a batch: the inputs of whole runs, stacked, and the programs of all of them.

The runs of all cells are stacked: a cell's numbers (a rule's ``c``, a step size, the strength of an attack) are rows of
the program's inputs, as are its random key, its clients' index lists and its malicious clients. Cells can share a
program exactly if their runs have the same ``jax.tree.structure``, and they share one copy of the examples.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag import checks
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.devices.placement import Devices, outlined, platform_of, shape_of
from fedjax_drag.simulation.devices.processes import checksum
from fedjax_drag.simulation.model.forms import variables_of
from fedjax_drag.simulation.model.initial_params import Start
from fedjax_drag.simulation.planning.outline import Lowered, Outline, outline
from fedjax_drag.simulation.planning.setup import federate, run_of
from fedjax_drag.simulation.program import programs
from fedjax_drag.simulation.program.clients_axis import ClientBatching, map_clients
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.own_models import evaluate_own_models
from fedjax_drag.simulation.program.programs import Metrics, Totals, has_own_models, own_examples
from fedjax_drag.simulation.run import Inputs, Run, RunState
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch

Examples = tuple[Batch, tuple[Batch, Batch | None], Batch | None, Batch | None]
"""What all cells share: training examples; test and validation examples; those that clients are evaluated on, and those
that their models are adapted to before that, None for nothing."""


class Over(NamedTuple):
    """The way over cells.

    Attributes:
      batching: over those of a device.
      mesh: devices that share them, or None.
    """

    batching: ClientBatching
    mesh: Mesh | None

    def __call__(self, one: Callable[[Any, Any], Any], shared: Any, cells: Any) -> Any:
        """``one(shared, cell)`` of every cell, stacked."""
        out = map_clients(self.batching, self.mesh, one, shared, cells)
        return out if self.mesh is None else jax.lax.with_sharding_constraint(out, share_of(self.mesh))


def _init_cells(over: Over, cells: Inputs, given: Start | None) -> RunState:
    """The states before the first round, from the same start ``given`` or from what each cell draws."""
    return over(lambda given, cell: programs.start(cell.run, cell.key, given), given, cells)


def init_cells(platform: str) -> Any:
    """:func:`_init_cells`, compiled."""
    return programs.compiled_quickly(_init_cells, 0, platform)


@functools.partial(jax.jit, static_argnums=0, donate_argnames="states")
def advance_cells(
    over: Over, train: Batch, cells: Inputs, states: RunState, totals: Totals, stop: Any
) -> tuple[RunState, Metrics, Totals]:
    """Rounds of every cell up to ``stop``; see :func:`~fedjax_drag.simulation.program.programs.rounds`."""

    def one(shared: Any, entry: tuple[Inputs, RunState, Totals]) -> tuple[RunState, Metrics, Totals]:
        (train, start, stop), (cell, state, totals) = shared, entry
        cell = cell._replace(federation=cell.federation._replace(train=train))
        return programs.rounds(cell, state._replace(round=start), totals, stop)

    # All cells are in the same round. Given once for all, it keeps the loop over rounds free of selections.
    return over(one, (train, states.round[0], stop), (cells, states, totals))


@functools.partial(jax.jit, static_argnums=0)
def evaluate_cells(
    over: Over,
    cells: Inputs,
    states: RunState,
    held_out: tuple[Batch, Batch | None],
    own: Batch | None,
    adapted_to: Batch | None,
) -> dict[str, jax.Array]:
    """The evaluation of every cell; of the last arguments see :data:`Examples`."""

    def one(shared: Any, entry: tuple[Inputs, RunState]) -> dict[str, jax.Array]:
        ((test, validation), own, adapted_to), (cell, state) = shared, entry
        cell = cell._replace(federation=cell.federation._replace(train=adapted_to, client_test=own))
        metrics = programs.evaluation(cell.run, state, test, validation, own_examples(cell.federation, state))
        if has_own_models(cell):
            metrics |= evaluate_own_models(cell, state, jnp.arange(cell.run.num_clients))
        return metrics

    return over(one, (held_out, own, adapted_to), (cells, states))


def gathered(
    settings: Sequence[Settings], width: int | None, cells_axis: str, mesh: Mesh | None, devices: Devices | None = None
) -> tuple[tuple[Inputs, ...], Over, int]:
    """The cells of a batch on the host, each without an axis, the way over them, and how many of them run at a time.

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
    if len({likeness(*one) for one in zip(settings, runs, strict=True)}) > 1:
        raise ValueError("cells differ in more than numbers, seeds and the split of the data: cannot be one program")
    federations = _padded([federate(one)._replace(train=(), client_test=None) for one in settings])
    keys = (jax.random.key(one.seed) for one in settings)
    return tuple(map(Inputs, runs, federations, keys)), Over(ClientBatching(cells_axis), mesh), width


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
    told += settings.stop_on_divergence, bool(settings.evaluate_clients), settings.byzantine_of, settings.is_run_alone
    start, own = settings.initial_params, variables_of(settings.model)
    same = [id(part) for part in (data.train, data.test, data.validation, settings.split.examples)]
    # What all cells start from is given once: a file, arrays, or those that a model brings with it.
    start = start if isinstance(start, str) else id(start), None if own is None else checksum(own)
    return structure, tuple(map(shape_of, leaves)), absent, told, start, tuple(same)


def outlines_of(cells: Sequence[Inputs], train: Any) -> tuple[Outline, ...]:
    """What is known of each cell's run from shapes."""
    with_examples = (cell._replace(federation=cell.federation._replace(train=train)) for cell in cells)
    return tuple(outline(cell, DEVICE) for cell in with_examples)


def examples_of(first: Settings) -> Examples:
    """The examples that all cells share."""
    data, own = first.data, first.split.examples
    adapts = own is not None and first.algorithm.adaptation is not None
    return data.train, (data.test, data.validation), own, data.train if adapts else None


def shapes_of(cell: Inputs, width: int, sharding: Any) -> Inputs:
    """Shapes of so many cells like this one."""
    like = outlined(jax.tree.map(stacked, cell), sharding)
    return jax.tree.map(lambda x: x.update(shape=(width, *x.shape[1:])), like)


def lower_cells(
    over: Over,
    cells: Inputs,
    examples: Examples,
    given: Start | None,
    shapes: RunState,
    platform: str | None = None,
) -> Lowered:
    """The programs for cells of these shapes, traced.

    Args:
      over: the way over cells.
      cells: shapes.
      examples: arrays or shapes.
      given: what all start from, or None.
      shapes: of one cell's state.
      platform: of the devices; default that of this process.
    """
    train, *evaluated = examples
    width, sharding = cells.key.shape[0], cells.key.sharding
    stacked = lambda x: jax.ShapeDtypeStruct((width, *x.shape), x.dtype, sharding=sharding)
    states, totals = jax.tree.map(stacked, (shapes, programs.no_totals(cells.run)))
    return Lowered(
        advance_cells.lower(over, train, cells, states, totals, np.int32(1)),
        evaluate_cells.lower(over, cells, states, *evaluated),
        init=init_cells(platform or jax.default_backend()).lower(over, cells, given),
    )


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


def share_of(mesh: Mesh | None) -> Any:
    """The sharding of what has a leading axis of cells; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def stacked(*leaves: Any) -> Any:
    """Leaves of several cells with a leading axis, those of NumPy on the host."""
    if isinstance(leaves[0], np.ndarray | np.generic):
        return np.stack(leaves)
    return jnp.stack([jnp.asarray(leaf) for leaf in leaves])
