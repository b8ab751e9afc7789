"""One run: its arguments checked, its data placed, its programs traced, and run; or its programs lowered alone.

What is lowered alone needs shapes only: no data is placed, and nothing is computed. The devices may be those of an
accelerator that is not there (:mod:`fedjax_drag.accelerators.targets`). What depends on the platform, such as the way
over the clients of a round, is chosen as it would be on these devices.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from fedjax_drag import checks
from fedjax_drag.models.modes import module_of
from fedjax_drag.simulation.devices import processes
from fedjax_drag.simulation.devices.host_state import DISK
from fedjax_drag.simulation.devices.model_sharding import Specs, divides_model, specs_of
from fedjax_drag.simulation.devices.placement import (
    Devices,
    along,
    everywhere,
    outlined,
    place_data,
    resolve_mesh,
)
from fedjax_drag.simulation.driver import Stopper
from fedjax_drag.simulation.model import initial_params
from fedjax_drag.simulation.model.model import joined
from fedjax_drag.simulation.option_groups import EarlyStopping, Watching, check_adversary
from fedjax_drag.simulation.options import check_options, option, options, takes
from fedjax_drag.simulation.planning.outline import Lowered, Outline, lowered, outline
from fedjax_drag.simulation.planning.setup import federate, mesh_of, run_of
from fedjax_drag.simulation.planning.spending import spent_by
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.progress import Progress, has_bars
from fedjax_drag.simulation.result import Result
from fedjax_drag.simulation.run import Inputs, Run, RunState
from fedjax_drag.simulation.runner import Evaluation, Simulation
from fedjax_drag.simulation.settings import Arguments, Settings, SimulateArguments, as_algorithm
from fedjax_drag.types import Aggregator, Algorithm


@takes(Arguments)
def prepare(algorithm: Algorithm | Aggregator, **settings: Any) -> Simulation:
    """Checks every argument, places the data and traces the run.

    It computes nothing, except that an attack of your own is called once with made-up messages, to verify that those of
    benign clients come back bit for bit.

    Args:
      algorithm: the method, or an aggregation rule, which stands for ``fd.algorithms.from_aggregator(rule)``.
      **settings: the others of :class:`~fedjax_drag.simulation.settings.Arguments`, which says all about each. Of those
        of :func:`simulate`, ``callbacks`` and ``initial`` are given to ``run`` of what is returned, and ``progress`` is
        not there.

    Raises:
      ValueError: one line naming the argument, its value and what is allowed.
    """
    return trace(_settings_of(algorithm, settings))


def _settings_of(algorithm: Algorithm | Aggregator, given: dict[str, Any]) -> Settings:
    asked = Settings(algorithm=as_algorithm("algorithm", algorithm), **given)
    check_adversary(asked.attack, asked.byzantine_fraction, asked.num_byzantine)
    return asked


def trace(asked: Settings) -> Simulation:
    """:func:`prepare` of settings that are already checked one by one.

    Raises:
      ValueError: if the settings do not fit together.
    """
    spent, on_host, run = spent_by(asked), federate(asked), run_of(asked)
    mesh = mesh_of(asked, run)
    if mesh is not None and mesh.is_multi_process:
        processes.check_same("data", (on_host, asked.data.test, asked.data.validation, asked.seed))
    if asked.client_state == DISK and jax.process_count() > 1:
        raise ValueError(f"client_state={DISK!r}: needs a run of one process; 'host' goes with several")
    inputs, (test, validation) = _placed(asked, run, on_host, mesh)
    known = outline(inputs, asked.client_state)
    given = initial_params.given(asked.initial_params, known.shapes, asked.model)
    if mesh is not None and mesh.is_multi_process:
        processes.check_same("initial_params", given)
    simulation = Simulation(
        spec=inputs.run,
        outline=known,
        federation=inputs.federation,
        test=test,
        validation=validation,
        key=inputs.key,
        given=given,
        num_rounds=asked.num_rounds,
        eval_every=asked.eval_every,
        rounds_per_compile=asked.rounds_per_compile or asked.eval_every,
        time_clients=asked.time_clients,
        stop_on_divergence=asked.stop_on_divergence,
        spent=spent,
        criterion=asked.criterion,
    )
    _ = simulation.lowered  # what cannot be traced is refused here
    return simulation


def _placed(
    asked: Settings,
    run: Run,
    on_host: Federation,
    mesh: Mesh | None,
    put: Callable[..., Any] = place_data,
    elsewhere: Any = None,
) -> tuple[Inputs, Any]:
    """The inputs of a run, and its test and validation examples, on the devices.

    Args:
      asked: of the run.
      run: without a mesh.
      on_host: its federation.
      mesh: devices that share the clients, or None.
      put: what places values, or :func:`~fedjax_drag.simulation.devices.placement.outlined` for their shapes alone.
      elsewhere: the sharding without a mesh; default that of JAX.

    Raises:
      ValueError: if the training examples are to be divided, and there is one device.
    """
    everyone = elsewhere if mesh is None else everywhere(mesh)
    where: tuple[Any, Mesh | None] = everyone, None
    if asked.shard_data:  # no device has all training examples
        if mesh is None:
            raise ValueError(f"shard_data=True with mesh={asked.mesh!r}: needs a mesh of several devices")
        where = along(mesh), mesh
        held_out, examples = on_host.held_out, asked.split.examples
        if asked.algorithm.adaptation is not None and held_out is not None:
            raise ValueError(
                f"shard_data=True: {asked.algorithm.name} trains clients' own models where they are evaluated, which "
                "needs all training examples on every device; must be False, or evaluate_clients be False"
            )
        if held_out is not None and examples is not None:
            places = held_out.examples
            own = jax.tree.map(lambda x: x[places], examples)  # alone, in their order
            held_out = held_out._replace(examples=np.arange(len(places), dtype=np.int32))
            on_host = on_host._replace(held_out=held_out, client_test=own)
    run = dataclasses.replace(run, mesh=mesh, specs=_specs(asked, run, mesh), shard_data=asked.shard_data)
    run = jax.tree.map(lambda x: put(x, everyone) if isinstance(x, jax.Array) else x, run)
    train = put(on_host.train, *where)
    held_out = asked.data.test, asked.data.validation
    federation, held_out, key = put((on_host._replace(train=()), held_out, jax.random.key(asked.seed)), everyone)
    return Inputs(run, federation._replace(train=train), key), held_out


def _specs(asked: Settings, run: Run, mesh: Mesh | None) -> Specs:
    """How the mesh divides the parameters of a run.

    Raises:
      ValueError: there are rules for it and no axis beside that of the clients, or a rule does not fit.
    """
    if mesh is None or not divides_model(mesh):
        if asked.sharding_rules is not None:
            raise ValueError(f"sharding_rules with mesh={asked.mesh!r}: need an axis beside that of the clients")
        return ()
    if asked.time_clients:
        raise ValueError(f"time_clients=True with mesh={asked.mesh!r}: needs a model that one device holds")
    rules = (*(asked.sharding_rules or ()), *getattr(module_of(asked.model), "sharding_rules", ()))
    params, state = jax.eval_shape(run.model.init, jax.random.key(0))
    return specs_of(rules, joined(params, state.frozen), mesh)


@takes(SimulateArguments)
def simulate(
    algorithm: Algorithm | Aggregator,
    *,
    callbacks: Sequence[Callable[[Evaluation], Any]] = (),
    initial: RunState | None = None,
    progress: bool | None = None,
    patience: int | None = None,
    stop_when: Any = None,
    **settings: Any,
) -> Result:
    """Runs a federation and returns its parameters and history.

    A call of equal parts and shapes in the same process is not compiled again, whatever its numbers and seed.

    Args:
      algorithm: the method, or an aggregation rule, which stands for ``fd.algorithms.from_aggregator(rule)``.
      callbacks: functions that are called with an :class:`Evaluation` after each evaluation. Where one returns True the
        run ends, with its result. An exception of one carries the result so far as its attribute ``result``.
      initial: state to continue from, such as ``result.state``; default a fresh start.
      progress: True for a progress bar in a terminal or a notebook, and elsewhere a line for each evaluation on
        standard error; False for neither; default None: the bar where there can be one, and no lines.
      patience: evaluations in a row without a better one, by ``metric``, after which the run ends; default None: never.
      stop_when: accuracy, or value of ``metric``, at which the run ends, or a function of an :class:`Evaluation` that
        returns True where it is to end; default None.
      **settings: the others of :class:`~fedjax_drag.simulation.settings.Arguments`, which says all about each. Those
        without a default must be given, and one of ``local_steps`` and ``local_epochs``.

    Returns:
      A :class:`~fedjax_drag.simulation.result.Result`.

    Raises:
      ValueError: for any setting that is wrong, before anything is computed.

    Examples:
      >>> rule = fd.aggregators.drag(c=0.25, alpha=0.25)  # or an algorithm, such as fd.algorithms.scaffold(40)
      >>> fd.simulate(rule, model=model, data=data, num_rounds=200, cohort_size=10, local_steps=5, batch_size=10,
      ...             step_size=0.01)
    """
    check_options(Watching(callbacks=callbacks, initial=initial, progress=progress))
    early = EarlyStopping(patience=patience, stop_when=stop_when)
    check_options(early)
    if initial is not None and settings.get("initial_params") is not None:
        raise ValueError("initial_params: is for a fresh start; must not be given with initial, which has parameters")
    asked = _settings_of(algorithm, settings)
    asked.criterion.check_target("stop_when", stop_when)
    simulation = trace(asked)
    start = 0 if initial is None else int(initial.round)
    if start >= simulation.num_rounds:
        raise ValueError(
            f"num_rounds={simulation.num_rounds}: counts from the start; must be more than the {start} of initial"
        )
    is_shown = processes.is_first() and (has_bars() if progress is None else progress)
    with Progress(algorithm.name, asked.num_rounds, start, quiet=None if is_shown else True, every=0.0) as bar:
        show = lambda event: bar.update(event.round, asked.criterion.said(event.metrics))
        return simulation.run([show, *callbacks, Stopper(early, criterion=asked.criterion)], initial)


def _check_devices(name: str, value: Any) -> None:
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if not is_list or not all(hasattr(device, "platform") for device in value):
        allowed = "a list of JAX devices, or None for those of this process"
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")


@options
class LowerArguments(Arguments):
    """The arguments of :func:`lower`: those of a run, and the ``devices`` for which it is lowered."""

    devices: Sequence[Any] | None = option(_check_devices, default=None)


@dataclasses.dataclass(frozen=True)
class LoweredRun:
    """The programs of a run, lowered; or those of several runs as the cells of one program.

    Attributes:
      programs: ``advance`` for rounds, ``evaluate`` and perhaps ``draw``; each has JAX's ``compile`` and ``as_text``.
      outline: shapes of the state, and what else is known of the run, or of the first cell.
      mesh: devices that share the clients, or the cells; None for one device.
      batching: how a device goes through its clients of a round.
      width: cells in one call, a multiple of the number of devices that share them; 1 of a run.
    """

    programs: Lowered
    outline: Outline
    mesh: Mesh | None
    batching: ClientBatching
    width: int = 1


@takes(LowerArguments)
def lower(algorithm: Algorithm | Aggregator, *, devices: Devices | None = None, **settings: Any) -> LoweredRun:
    """Lowers the programs of a run from shapes, without placing data and without computing.

    With ``clients_axis="auto"`` it takes the way that is usually best on the platform, since nothing is timed; an
    attack of your own is called once with made-up messages, as by :func:`~fedjax_drag.simulation.prepare`. Data that
    are not on this machine may be given as arrays that take no memory, ``np.broadcast_to(np.float32(0), shape)``: only
    shapes, labels of the split and numbers of examples count.

    Args:
      algorithm: the method, or an aggregation rule, which stands for ``fd.algorithms.from_aggregator(rule)``.
      devices: JAX devices of one kind for which to lower, of this process or to compile for alone, such as
        ``fedjax_drag.accelerators.targets.find("h100").devices``; default those of this process. ``mesh="all"`` shares
        the clients among all of them, ``mesh="auto"`` takes the first.
      **settings: the others of :class:`LowerArguments`.

    Raises:
      ValueError: one line naming the argument, its value and what is allowed.

    Examples:
      >>> target = fedjax_drag.accelerators.targets.find("h100")
      >>> lowered = fd.simulation.lower(rule, devices=target.devices, model=model, data=data, num_rounds=200,
      ...                               cohort_size=10, local_steps=5, batch_size=10, step_size=0.01)
      >>> lowered.programs.advance.compile().memory_analysis()
    """
    if devices is not None:
        _check_devices("devices", devices)
    return lower_settings(_settings_of(algorithm, settings), devices)


def lower_settings(asked: Settings, devices: Devices | None = None) -> LoweredRun:
    """:func:`lower` of settings that are already checked one by one.

    Raises:
      ValueError: if the settings do not fit together.
    """
    on_host, run = federate(asked), run_of(asked, devices)
    mesh = mesh_of(asked, run) if devices is None else resolve_mesh(asked.mesh, asked.cohort_size, devices)
    inputs, held_out = _placed(asked, run, on_host, mesh, outlined, first_of(devices))
    known = outline(inputs, asked.client_state)
    return LoweredRun(lowered(inputs, known, held_out), known, mesh, run.batching)


def first_of(devices: Devices | None) -> Any:
    """The sharding of what is on the first of these devices; None for the default device."""
    return None if devices is None else SingleDeviceSharding(devices[0])
