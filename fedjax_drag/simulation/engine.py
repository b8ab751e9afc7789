"""A run: compiled rounds between evaluations, driven from the host."""

import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag import per_client
from fedjax_drag.simulation.calls import takes
from fedjax_drag.simulation.devices import host_state, nans, processes, program_cache
from fedjax_drag.simulation.devices.host_state import DEVICE, DISK, HOST
from fedjax_drag.simulation.devices.placement import (
    can_share,
    divided,
    everywhere,
    own_copy,
    place,
    place_data,
    resolve_mesh,
)
from fedjax_drag.simulation.every_client.accuracies import by_client_and_class
from fedjax_drag.simulation.model.start import Start
from fedjax_drag.simulation.model.trainable import joined
from fedjax_drag.simulation.options import check_options
from fedjax_drag.simulation.parts import STATE, as_algorithm
from fedjax_drag.simulation.planning import initial_params, memory
from fedjax_drag.simulation.planning.fingerprint import fingerprint
from fedjax_drag.simulation.planning.privacy import Spent, spent_by
from fedjax_drag.simulation.planning.setup import federate, programs_of
from fedjax_drag.simulation.planning.sharing import advisors, is_worthwhile
from fedjax_drag.simulation.planning.tracing import Lowered, Shared, Traced, trace_programs
from fedjax_drag.simulation.program.client_cost import ClientCost, measure_seconds
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import TIMED_STEPS, Programs, own_examples
from fedjax_drag.simulation.program.work import RunState
from fedjax_drag.simulation.progress import watched
from fedjax_drag.simulation.result import Result, client_seconds, history_row, stack_history
from fedjax_drag.simulation.settings import Arguments, Settings, SimulateArguments, Watching, check_adversary
from fedjax_drag.types import Aggregator, Algorithm, Batch


class Evaluation(NamedTuple):
    """What a callback receives after each evaluation.

    Attributes:
      round: rounds done.
      num_rounds: rounds of the whole run.
      metrics: this evaluation's row of the history, a copy for each callback.
      state: the run's state. Its buffers are given to the next rounds: copy what must outlive the callback.
      diverged_at: the first round of this run after which a parameter was not finite, or None.
    """

    round: int
    num_rounds: int
    metrics: dict[str, Any]
    state: RunState
    diverged_at: int | None = None


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A checked and traced run, ready to be compiled and started by :meth:`run`.

    Attributes:
      federation: data on the device.
      test: test examples on the device.
      validation: validation examples on the device; None where the data have none.
      key: from which all randomness is derived.
      given: from which the run starts, on the host; None to draw it.
      cohort_size: clients in a round.
      num_rounds: rounds of the run.
      eval_every: rounds between evaluations.
      rounds_per_compile: most rounds between two visits to the host.
      mesh: devices that share the clients; None for one device.
      traced: the run's programs; where an identical run has been compiled before, they are traced when first asked for.
      shared: what identical runs share.
      name: by which later runs find ``shared``; None if they cannot.
      time_clients: whether :meth:`run` measures how long a local step takes.
      stop_on_divergence: whether a run whose parameters are not finite ends.
      diagnostics: whether the history keeps the accuracy of each client, where clients are evaluated.
      spent: privacy spent after some rounds.
    """

    federation: Federation
    test: Batch
    validation: Batch | None
    key: jax.Array
    given: Start | None
    cohort_size: int
    num_rounds: int
    eval_every: int
    rounds_per_compile: int
    mesh: Mesh | None
    traced: Callable[[], Traced]
    shared: Shared
    name: tuple[Hashable, ...] | None
    time_clients: bool
    stop_on_divergence: bool
    diagnostics: bool
    spent: Spent

    @property
    def programs(self) -> Programs:
        """The run as pure functions."""
        return self.traced().programs

    @property
    def lowered(self) -> Lowered:
        """The same, traced."""
        return self.traced().lowered

    @property
    def shapes(self) -> RunState:
        """Shapes and dtypes of a state."""
        return self.shared.outline.shapes

    @property
    def shardings(self) -> Any:
        """Devices of the state that a round's program receives; None without a mesh."""
        return self.shared.outline.shardings

    @property
    def cost(self) -> ClientCost:
        """What the method asks of one client."""
        return self.shared.outline.cost

    @property
    def walk(self) -> Walk:
        """How a device goes through its clients of a round."""
        return self.shared.outline.walk

    @property
    def mesh_devices(self) -> int:
        """How many devices share the clients of a round."""
        return self.mesh.size if self.mesh else 1

    @property
    def client_state_bytes(self) -> int:
        """Bytes of what is kept for every client of the federation, by the method and by the engine."""
        return per_client.num_bytes(self.shapes)

    def run(self, callbacks: Sequence[Callable[[Evaluation], Any]] = (), initial: RunState | None = None) -> Result:
        """Compiles, then runs to the last round, or to the first evaluation after the parameters diverged.

        Where an identical run has been compiled in this process, its programs are used
        (:mod:`~fedjax_drag.simulation.devices.program_cache`).

        Args:
          callbacks: each is called on the host after every evaluation.
          initial: state to continue from; default a fresh start.

        Returns:
          The :class:`~fedjax_drag.simulation.result.Result`; its history starts after ``initial``.

        Raises:
          ValueError: if ``initial`` does not fit this simulation.
          MemoryError: if the run needs more memory than the device has free.
        """
        started = time.perf_counter()
        with program_cache.compiling(self._uncompiled(), self.mesh):
            if initial is None:
                self._init()
        compiled = self._compiled()
        self._check_memory()
        state = self.initial_state() if initial is None else self._checked(initial)
        seconds_per_step = self._seconds_per_step(state) if self.time_clients else None
        compile_seconds = time.perf_counter() - started

        started = time.perf_counter()
        history: list[dict[str, Any]] = []
        done, diverged_at = int(state.round), None
        while done < self.num_rounds and not (diverged_at and self.stop_on_divergence):
            target = min(self.num_rounds, (done // self.eval_every + 1) * self.eval_every)
            with nans.located(done + 1, target):
                state, metrics, totals = self._advance(compiled, state, done, target)
                own = own_examples(self.federation, state)
                evaluated = compiled.evaluate(per_client.without_rows(state), self.test, self.validation, own)
            metrics, totals, evaluated = jax.device_get((metrics, totals, evaluated))
            evaluated = by_client_and_class(evaluated, self.diagnostics)
            measured = metrics, totals, evaluated, self.cost
            history.append(history_row(target, target - done, *measured, self.spent(target)))
            done, diverged_at = target, diverged_at or int(totals.diverged_at) or None
            for callback in callbacks:
                callback(Evaluation(done, self.num_rounds, dict(history[-1]), state, diverged_at))
        jax.block_until_ready(state)
        columns = stack_history(history)
        if seconds_per_step is not None and columns:
            columns |= {"client_seconds": client_seconds(columns, seconds_per_step)}
        seconds = time.perf_counter() - started
        params = joined(state.params, state.model.frozen)
        params = params if self.key.is_fully_addressable else own_copy(params)
        return Result(
            params=params,
            history=columns,
            state=state,
            seconds=seconds,
            compile_seconds=compile_seconds,
            cost=self.cost,
            seconds_per_step=seconds_per_step,
            diverged_at=diverged_at,
        )

    def _uncompiled(self) -> list[Any]:
        """The programs of rounds and of the evaluation that are still to be compiled."""
        return [] if self.shared.compiled is not None else [program for program in self.lowered if program is not None]

    def _compiled(self) -> Lowered:
        """The compiled programs, kept for identical runs."""
        if self.shared.compiled is None:
            compiled = self.lowered.compile(self.mesh)
            self.shared.needed = memory.needed(compiled.advance), memory.needed(compiled.evaluate)
            self.shared.compiled = compiled
            if self.name is not None and self.lowered.is_self_contained and self._is_unchanged():
                program_cache.runs.put(self.name, self.shared)
        return self.shared.compiled

    def _is_unchanged(self) -> bool:
        """Whether JAX is configured as it was when the run was prepared."""
        return self.name is not None and self.name[-1] == program_cache.context()

    def _check_memory(self) -> None:
        rows, rows_on = self.client_state_bytes, self.shared.outline.rows_on
        ways_out = memory.ways_out(*self.walk, rows_on if rows else None, self.mesh is not None)
        advanced = self.federation._replace(held_out=None), self.key
        programs = zip(
            self.shared.needed, (advanced, (self.test, self.validation, self.federation.evaluated)), strict=True
        )
        memory.check(programs, rows if rows_on == HOST else 0, ways_out)

    def _seconds_per_step(self, state: RunState) -> float:
        """Seconds that one client needs for a local step, by itself on this device."""
        if self.shared.seconds_per_step is not None:
            return self.shared.seconds_per_step
        # On a copy of its own: of several processes, each repeats the pass as often as its own clock requires.
        federation, key, state = own_copy((self.federation, self.key, state))
        if self.shared.outline.rows_on != DEVICE:
            state = host_state.take(state, np.arange(self.cohort_size), None)
        program = program_cache.compiled(jax.jit(self.programs.client).lower(federation, key, state), None)
        seconds = measure_seconds(program, federation, key, state) / TIMED_STEPS
        if self._is_unchanged():
            self.shared.seconds_per_step = seconds
        return seconds

    def _advance(self, compiled: Lowered, state: RunState, done: int, target: int) -> tuple[RunState, Any, Any]:
        """Rounds ``done`` to ``target``: the state, the metrics of the last of them, and the sums over all."""
        metrics, totals = {}, self.shared.outline.totals
        while done < target:
            if compiled.draw is None:
                done = min(target, done + self.rounds_per_compile)
                state, metrics, totals = compiled.advance(self.federation, self.key, state, totals, np.int32(done))
                continue
            done += 1
            client_ids = np.asarray(compiled.draw(self.federation, self.key, per_client.without_rows(state)))
            cohort = host_state.take(state, client_ids, self.shardings)
            after, metrics, totals = compiled.advance(self.federation, self.key, cohort, totals, np.int32(done))
            state = host_state.store(state, after, client_ids)
        return state, metrics, totals

    def initial_state(self) -> RunState:
        """The state before the first round."""
        state = self._init()(self.key, place(self.given, everywhere(self.mesh)))
        rows_on = self.shared.outline.rows_on
        return state if rows_on == DEVICE else host_state.repeat(state, self.federation.rows.shape[0], rows_on)

    def _init(self) -> Any:
        """The compiled program of :meth:`initial_state`, kept for identical runs."""
        start = jax.tree.structure(self.given)
        program = self.shared.inits.get(start)
        if program is None:
            lowered = self._jitted_init().lower(self.key, place(self.given, everywhere(self.mesh)))
            program = program_cache.compiled(lowered, self.mesh)
            if self._is_unchanged() and program_cache.is_self_contained(lowered):
                self.shared.inits[start] = program
        return program

    def _jitted_init(self) -> Any:
        init = self.programs.init
        once = functools.partial(program_cache.jit_for_one_call, platform=jax.default_backend())
        if self.shared.outline.rows_on == DEVICE:
            return once(init, out_shardings=self.shardings)
        # Every client starts from the same row: one on the device is enough.
        return once(lambda *inputs: host_state.first_row(init(*inputs)), out_shardings=self.key.sharding)

    def _checked(self, initial: RunState) -> RunState:
        STATE.check("initial", initial)
        like = self.shapes
        if jax.tree.structure(initial) != jax.tree.structure(like):
            raise ValueError(
                "initial: is the state of another algorithm or model; must be one of this run's, as is "
                "prepare(...).initial_state()"
            )
        for (path, leaf), expected in zip(jax.tree.leaves_with_path(initial), jax.tree.leaves(like), strict=True):
            if np.shape(leaf) != expected.shape:
                name = jax.tree_util.keystr(path)
                raise ValueError(f"initial{name} with shape {np.shape(leaf)}: must be {expected.shape}")

        # A copy, because the compiled rounds reuse the buffers they are given.
        def copied(state: Any, like: Any) -> Any:
            return jax.tree.map(lambda x, e: jnp.array(x, e.dtype, copy=True), state, like)

        if self.shared.outline.rows_on == DEVICE:
            return place(copied(initial, like), self.shardings or self.key.sharding)
        on_device = copied(per_client.without_rows(initial), per_client.without_rows(like))
        return host_state.with_rows_of(initial, place(on_device, self.key.sharding), self.shared.outline.rows_on)


@takes(Arguments)
def prepare(algorithm: Algorithm | Aggregator, **settings: Any) -> Simulation:
    """Checks every argument, places the data and traces the run.

    It computes nothing, except that ``clients_axis="auto"``, the default, may time a few local steps (see
    :class:`~fedjax_drag.simulation.settings.Execution`), and that an attack of your own is called once with made-up
    messages, to verify that those of benign clients come back bit for bit.

    Args:
      algorithm: the method, or an aggregation rule, which stands for ``fd.algorithms.from_aggregator(rule)``.
      **settings: the others of :class:`~fedjax_drag.simulation.settings.Arguments`.

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
    on_host = federate(asked)
    mesh = mesh_of(asked, on_host)
    name = _name(asked, mesh, on_host)
    shared = None if name is None else program_cache.runs.get(name)
    build = functools.partial(programs_of, asked, mesh, asked.num_byzantine_in_cohort)
    built = build() if shared is None else None
    everyone, held_out = everywhere(mesh), (asked.data.test, asked.data.validation)
    on_host = sharable(asked, mesh, on_host)
    if mesh is not None and mesh.is_multi_process:
        processes.check_same("data", (on_host, *held_out, asked.seed))
    if asked.client_state == DISK and jax.process_count() > 1:
        raise ValueError(f"client_state={DISK!r}: needs a run of one process; 'host' goes with several")
    divider = mesh if asked.shard_data else None
    train = place_data(on_host.train, everyone) if divider is None else divided(on_host.train, divider)
    federation, held_out = place_data((on_host._replace(train=()), held_out), everyone)
    federation, key = federation._replace(train=train), place(jax.random.key(asked.seed), everyone)

    @functools.cache
    def traced() -> Traced:
        return trace_programs(asked, *(built or build()), federation, held_out, key)

    shared = shared or Shared(traced().outline)
    return Simulation(
        federation=federation,
        test=held_out[0],
        validation=held_out[1],
        key=key,
        given=_given(asked, shared, mesh),
        cohort_size=asked.cohort_size,
        num_rounds=asked.num_rounds,
        eval_every=asked.eval_every,
        rounds_per_compile=asked.rounds_per_compile or asked.eval_every,
        mesh=mesh,
        traced=traced,
        shared=shared,
        name=name,
        time_clients=asked.time_clients,
        stop_on_divergence=asked.stop_on_divergence,
        diagnostics=asked.reports_clients,
        spent=spent,
    )


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


def mesh_of(asked: Settings, federation: Federation) -> Mesh | None:
    """The devices that share the clients; None for one device."""
    mesh = asked.mesh
    if mesh == "auto" and not asked.shard_data and can_share(asked.cohort_size):
        mesh = "cores" if is_worthwhile(asked, _name(asked, None, federation)) else None
    return resolve_mesh(mesh, asked.cohort_size)


def _given(asked: Settings, shared: Shared, mesh: Mesh | None) -> Start | None:
    """What the run starts from, on the host; None to draw it."""
    given = initial_params.given(asked.initial_params, shared.outline.shapes)
    if mesh is not None and mesh.is_multi_process:
        processes.check_same("initial_params", given)
    return given


def _name(asked: Settings, mesh: Mesh | None, federation: Federation) -> tuple[Hashable, ...] | None:
    """By which identical runs find each other; None if a part cannot be read, or several processes take part."""
    if mesh is not None and mesh.is_multi_process:  # all of them must compile, or none
        return None
    read = fingerprint(asked, mesh, federation)
    return None if read is None else (read, program_cache.context())


@takes(SimulateArguments)
def simulate(
    algorithm: Algorithm | Aggregator,
    *,
    callbacks: Sequence[Callable[[Evaluation], Any]] = (),
    initial: RunState | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Runs a federation and returns its parameters and history.

    An identical call in the same process is not compiled again; :func:`~fedjax_drag.simulation.clear_cache` drops what
    is kept for it.

    Args:
      algorithm: the method, or an aggregation rule, which stands for ``fd.algorithms.from_aggregator(rule)``.
      callbacks: functions that are called with an :class:`Evaluation` after each evaluation.
      initial: state to continue from, such as ``result.state``; default a fresh start.
      progress: True for a progress bar in a terminal or a notebook, and elsewhere a line for each evaluation on
        standard error; False for neither; default None: the bar where there can be one, and no lines.
      **settings: the others of :class:`~fedjax_drag.simulation.settings.Arguments`. Those without a default must be
        given, and one of ``local_steps`` and ``local_epochs``.

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
    if initial is not None and settings.get("initial_params") is not None:
        raise ValueError("initial_params: is for a fresh start; must not be given with initial, which has parameters")
    simulation = prepare(algorithm, **settings)
    start = 0 if initial is None else int(initial.round)
    if start >= simulation.num_rounds:
        raise ValueError(
            f"num_rounds={simulation.num_rounds}: counts from the start; must be more than the {start} of initial"
        )
    progress = progress if processes.is_first() else False
    advice = [] if progress is False else advisors(settings.get("mesh", Settings.mesh), simulation.cohort_size)
    with watched(algorithm.name, simulation.num_rounds, start, progress) as show:
        return simulation.run([show, *advice, *callbacks], initial)
