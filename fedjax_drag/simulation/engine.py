"""One run: its arguments checked, its data placed, its programs traced, and run."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from fedjax_drag.simulation.arguments import as_algorithm
from fedjax_drag.simulation.devices import processes
from fedjax_drag.simulation.devices.host_state import DISK
from fedjax_drag.simulation.devices.placement import divided, everywhere, place, place_data
from fedjax_drag.simulation.driver import Stopper
from fedjax_drag.simulation.model import initial_params
from fedjax_drag.simulation.model.initial_params import Start
from fedjax_drag.simulation.option_groups import EarlyStopping, check_adversary
from fedjax_drag.simulation.options import check_options, takes
from fedjax_drag.simulation.planning.outline import Outline, outline
from fedjax_drag.simulation.planning.setup import federate, mesh_of, run_of, spent_by
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.progress import progress_shown
from fedjax_drag.simulation.result import Result
from fedjax_drag.simulation.run import Run, RunState
from fedjax_drag.simulation.runner import Evaluation, Simulation
from fedjax_drag.simulation.settings import Arguments, Settings, SimulateArguments, Watching
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
    asked = Settings(algorithm=as_algorithm("algorithm", algorithm), **settings)
    check_adversary(asked.attack, asked.byzantine_fraction, asked.num_byzantine)
    return trace(asked)


def trace(asked: Settings) -> Simulation:
    """:func:`prepare` of settings that are already checked one by one.

    Raises:
      ValueError: if the settings do not fit together.
    """
    spent = spent_by(asked)
    on_host, run = federate(asked), run_of(asked)
    mesh = mesh_of(asked, run)
    on_host = sharable(asked, mesh, on_host)
    run = dataclasses.replace(run, mesh=mesh, shard_data=asked.shard_data)
    if mesh is not None and mesh.is_multi_process:
        processes.check_same("data", (on_host, asked.data.test, asked.data.validation, asked.seed))
    if asked.client_state == DISK and jax.process_count() > 1:
        raise ValueError(f"client_state={DISK!r}: needs a run of one process; 'host' goes with several")
    federation, held_out = _placed(asked, mesh, on_host)
    key = place(jax.random.key(asked.seed), everywhere(mesh))
    run = placed_arrays(run)
    known = outline(run, federation, key, asked.client_state)
    simulation = Simulation(
        spec=run,
        outline=known,
        federation=federation,
        test=held_out[0],
        validation=held_out[1],
        key=key,
        given=_given(asked, known, mesh),
        num_rounds=asked.num_rounds,
        eval_every=asked.eval_every,
        rounds_per_compile=asked.rounds_per_compile or asked.eval_every,
        time_clients=asked.time_clients,
        stop_on_divergence=asked.stop_on_divergence,
        spent=spent,
    )
    _ = simulation.lowered  # what cannot be traced is refused here
    return simulation


def placed_arrays(run: Run) -> Run:
    """A run whose parts hold their arrays on every device that shares its clients."""
    if run.mesh is None:
        return run
    return jax.tree.map(lambda x: place(x, everywhere(run.mesh)) if isinstance(x, jax.Array) else x, run)


def sharable(asked: Settings, mesh: Mesh | None, federation: Federation) -> Federation:
    """A federation on the host with what each device needs of it, where the devices share the training examples.

    Raises:
      ValueError: if they are to be shared and there is one device.
    """
    if asked.shard_data and mesh is None:
        raise ValueError(f"shard_data=True with mesh={asked.mesh!r}: needs a mesh of several devices")
    if not asked.shard_data or federation.held_out is None:
        return federation
    # No device has all training examples.
    return federation._replace(held_out=federation.held_out.taken_from(federation.train))


def _placed(asked: Settings, mesh: Mesh | None, on_host: Federation) -> tuple[Federation, tuple[Any, Any]]:
    """The federation on its devices, and the test and the validation examples."""
    everyone = everywhere(mesh)
    divider = mesh if asked.shard_data else None
    train = place_data(on_host.train, everyone) if divider is None else divided(on_host.train, divider)
    others = on_host._replace(train=()), (asked.data.test, asked.data.validation)
    federation, held_out = place_data(others, everyone)
    return federation._replace(train=train), held_out


def _given(asked: Settings, known: Outline, mesh: Mesh | None) -> Start | None:
    """What the run starts from, on the host; None to draw it."""
    given = initial_params.given(asked.initial_params, known.shapes, asked.model)
    if mesh is not None and mesh.is_multi_process:
        processes.check_same("initial_params", given)
    return given


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
      patience: evaluations in a row without a higher accuracy after which the run ends; default None: never.
      stop_when: accuracy at which the run ends, or a function of an :class:`Evaluation` that returns True where it is
        to end; default None.
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
    simulation = prepare(algorithm, **settings)
    start = 0 if initial is None else int(initial.round)
    if start >= simulation.num_rounds:
        raise ValueError(
            f"num_rounds={simulation.num_rounds}: counts from the start; must be more than the {start} of initial"
        )
    progress = progress if processes.is_first() else False
    with progress_shown(algorithm.name, simulation.num_rounds, start, progress) as show:
        return simulation.run([show, *callbacks, Stopper(early)], initial)
