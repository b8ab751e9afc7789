"""Runs lowered for devices from shapes alone: no data is placed, and nothing is computed.

The devices may be those of an accelerator that is not there (:mod:`fedjax_drag.accelerators.targets`). What depends on
the platform, such as the way over the clients of a round, is chosen as it would be on these devices.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, SingleDeviceSharding

from fedjax_drag import checks
from fedjax_drag.simulation.arguments import as_algorithm
from fedjax_drag.simulation.cells import (
    LoweredBatch,
    examples_of,
    gathered,
    lower_cells,
    outlines_of,
    shapes_of,
    share_of,
)
from fedjax_drag.simulation.devices.placement import Devices, along, everywhere, outlined, platform_of, resolve_mesh
from fedjax_drag.simulation.engine import sharable
from fedjax_drag.simulation.model import initial_params
from fedjax_drag.simulation.option_groups import check_adversary
from fedjax_drag.simulation.options import check_options, documented, option, optional, options, takes
from fedjax_drag.simulation.planning.outline import Lowered, Outline, lowered, outline
from fedjax_drag.simulation.planning.setup import federate, mesh_of, run_of
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.run import Run
from fedjax_drag.simulation.settings import Arguments, Settings
from fedjax_drag.types import Aggregator, Algorithm


def _check_devices(name: str, value: Any) -> None:
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if not is_list or not all(hasattr(device, "platform") for device in value):
        raise ValueError(
            f"{name}={checks.shown(value)}: must be a list of JAX devices, or None for those of this process"
        )


@options
class For:
    """For which devices a run is lowered.

    Attributes:
      devices: JAX devices of one kind, of this process or to compile for alone, such as
        ``fedjax_drag.accelerators.targets.find("h100").devices``; default those of this process. ``mesh="all"`` shares
        the clients among all of them, ``mesh="auto"`` takes the first.
    """

    devices: Sequence[Any] | None = option(optional(_check_devices), default=None)


@documented
@options
class LowerArguments(For, Arguments):
    """The arguments of :func:`lower`."""


@dataclasses.dataclass(frozen=True)
class LoweredRun:
    """A run's programs, lowered.

    Attributes:
      programs: ``advance`` for rounds, ``evaluate`` and perhaps ``draw``; each has JAX's ``compile`` and ``as_text``.
      outline: shapes of the state, and what else is known of the run.
      mesh: devices that share the clients; None for one device.
      batching: how a device goes through its clients of a round.
    """

    programs: Lowered
    outline: Outline
    mesh: Mesh | None
    batching: ClientBatching


@dataclasses.dataclass(frozen=True)
class LoweredCells:
    """The programs of some cells, lowered.

    Attributes:
      programs: ``init``, ``advance`` and ``evaluate``, for :attr:`width` cells.
      width: cells in one call; a multiple of the number of devices.
      batching: how a device goes through the clients of a cell's round.
      mesh: devices that share the cells; None for one device.
    """

    programs: LoweredBatch
    width: int
    batching: ClientBatching
    mesh: Mesh | None


@takes(LowerArguments)
def lower(algorithm: Algorithm | Aggregator, *, devices: Devices | None = None, **settings: Any) -> LoweredRun:
    """Lowers the programs of a run from shapes, without placing data and without computing.

    With ``clients_axis="auto"`` it takes the way that is usually best on the platform, since nothing is timed; an
    attack of your own is called once with made-up messages, as by :func:`~fedjax_drag.simulation.prepare`. Data that
    are not on this machine may be given as arrays that take no memory, ``np.broadcast_to(np.float32(0), shape)``: only
    shapes, labels of the split and numbers of examples count.

    Args:
      algorithm: the method, or an aggregation rule, which stands for ``fd.algorithms.from_aggregator(rule)``.
      devices: for which to lower; see below.
      **settings: the others of :class:`LowerArguments`.

    Raises:
      ValueError: one line naming the argument, its value and what is allowed.

    Examples:
      >>> target = fedjax_drag.accelerators.targets.find("h100")
      >>> lowered = fd.simulation.lower(rule, devices=target.devices, model=model, data=data, num_rounds=200,
      ...                               cohort_size=10, local_steps=5, batch_size=10, step_size=0.01)
      >>> lowered.programs.advance.compile().memory_analysis()
    """
    check_options(For(devices=devices))
    asked = Settings(algorithm=as_algorithm("algorithm", algorithm), **settings)
    check_adversary(asked.attack, asked.byzantine_fraction, asked.num_byzantine)
    return lower_settings(asked, devices)


def lower_settings(asked: Settings, devices: Devices | None = None) -> LoweredRun:
    """:func:`lower` of settings that are already checked one by one.

    Raises:
      ValueError: if the settings do not fit together.
    """
    on_host, run = federate(asked), run_of(asked, devices or jax.local_devices())
    mesh = mesh_of(asked, run) if devices is None else resolve_mesh(asked.mesh, asked.cohort_size, devices)
    on_host = sharable(asked, mesh, on_host)
    everyone = _sharding(mesh, devices)
    run = _outlined_arrays(dataclasses.replace(run, mesh=mesh, shard_data=asked.shard_data), everyone)
    train = outlined(on_host.train, everyone)
    if mesh is not None and asked.shard_data:
        train = outlined(on_host.train, along(mesh), mesh)
    rest = on_host._replace(train=()), (asked.data.test, asked.data.validation), _key()
    federation, held_out, key = outlined(rest, everyone)
    federation = federation._replace(train=train)
    known = outline(run, federation, key, asked.client_state)
    return LoweredRun(lowered(run, known, federation, held_out, key), known, mesh, run.batching)


def lower_batch(
    settings: Sequence[Settings],
    *,
    width: int | None = None,
    cells_axis: str = "auto",
    devices: Devices | None = None,
) -> LoweredCells:
    """Lowers the runs of some cells as one program, as :func:`lower` does one.

    Args:
      settings: as for :func:`~fedjax_drag.simulation.batch.prepare_batch`.
      width: cells in one call of the program; default all.
      cells_axis: as there, by the platform of ``devices``.
      devices: which share the cells; default the first of this process.

    Raises:
      ValueError: if the settings cannot be run.
    """
    sharing = () if devices is None else devices[: len(settings)]
    mesh = Mesh(sharing, ("cells",)) if len(sharing) > 1 else None
    everyone, platform = _sharding(mesh, devices), platform_of(devices)
    whole, over, width = gathered(settings, width, cells_axis, mesh, devices or jax.local_devices())
    examples = outlined(examples_of(settings[0]), everyone)
    (first, *_), common = outlines_of(whole, examples[0]), _outlined_arrays(whole.common, everyone)
    given = initial_params.given(settings[0].initial_params, first.shapes, settings[0].model)
    given = None if given is None else outlined(given, everyone)
    cells = shapes_of(whole.at([0]), width, share_of(mesh) or everyone)
    programs = lower_cells(over, common, cells, examples, given, first.shapes, platform)
    return LoweredCells(programs, width, whole.runs[0].batching, mesh)


def _outlined_arrays(run: Run, sharding: Any) -> Run:
    """A run whose arrays are shapes on the devices of a sharding."""
    return jax.tree.map(lambda x: outlined(x, sharding) if isinstance(x, jax.Array) else x, run)


def _sharding(mesh: Mesh | None, devices: Devices | None) -> Any:
    """Of what every device has; None for the default device."""
    return everywhere(mesh) or (None if devices is None else SingleDeviceSharding(devices[0]))


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))
