"""A run: compiled rounds between evaluations, driven from the host."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.simulation.devices import host_state, nans, processes
from fedjax_drag.simulation.devices.placement import divided, everywhere, own_copy, place, placement, resolve_mesh
from fedjax_drag.simulation.planning import memory
from fedjax_drag.simulation.planning.arguments import check_benign
from fedjax_drag.simulation.planning.setup import federate, programs_of
from fedjax_drag.simulation.program.client_cost import ClientCost, measure_seconds
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import TIMED_STEPS, Programs, cost_of, no_totals
from fedjax_drag.simulation.program.round import choose_cohort
from fedjax_drag.simulation.program.work import RunState
from fedjax_drag.simulation.result import Result, client_seconds, history_row, stack_history
from fedjax_drag.simulation.settings import Settings, check_adversary
from fedjax_drag.types import Algorithm, Batch


class Evaluation(NamedTuple):
    """What a callback receives after each evaluation.

    Attributes:
      round: rounds done.
      num_rounds: rounds of the whole run.
      metrics: this evaluation's row of the history.
      state: the run's state. Its buffers are given to the next rounds: copy what must outlive the callback.
      diverged_at: the first round of this run after which a parameter was not finite, or None.
    """

    round: int
    num_rounds: int
    metrics: dict[str, Any]
    state: RunState
    diverged_at: int | None = None


class Lowered(NamedTuple):
    """The programs of a run, traced for its shapes.

    Attributes:
      advance: of :class:`Programs`.
      evaluate: of :class:`Programs`.
      draw: ``(federation, key, state) -> client_ids``, the next round's cohort; only if the clients' state is on the
        host.
    """

    advance: Any
    evaluate: Any
    draw: Any = None


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A checked and traced run, ready to be compiled and started by :meth:`run`.

    Attributes:
      federation: data on the device.
      test: test examples on the device.
      key: from which all randomness is derived.
      cohort_size: clients in a round.
      num_rounds: rounds of the run.
      eval_every: rounds between evaluations.
      rounds_per_compile: most rounds between two visits to the host.
      programs: the run as pure functions.
      lowered: the same, traced.
      shardings: devices of the state that a round's program receives; None without a mesh.
      cost: what the method asks of one client.
      time_clients: whether :meth:`run` measures how long a local step takes.
      walk: how a device goes through its clients of a round.
      stop_on_divergence: whether a run whose parameters are not finite ends.
    """

    federation: Federation
    test: Batch
    key: jax.Array
    cohort_size: int
    num_rounds: int
    eval_every: int
    rounds_per_compile: int
    programs: Programs
    lowered: Lowered
    shardings: Any
    cost: ClientCost
    time_clients: bool
    walk: Walk
    stop_on_divergence: bool

    @property
    def shapes(self) -> RunState:
        """Shapes and dtypes of a state."""
        return jax.eval_shape(self.programs.init, self.key)

    @property
    def client_state_bytes(self) -> int:
        """Bytes of what the method keeps for every client of the federation."""
        return per_client.num_bytes(self.shapes)

    def run(self, callbacks: Sequence[Callable[[Evaluation], Any]] = (), initial: RunState | None = None) -> Result:
        """Compiles, then runs to the last round, or to the first evaluation after the parameters diverged.

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
        compiled = Lowered(*(program and program.compile() for program in self.lowered))
        self._check_memory(compiled)
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
                evaluated = compiled.evaluate(per_client.without_rows(state), self.test)
            metrics, totals, evaluated = jax.device_get((metrics, totals, evaluated))
            history.append(history_row(target, target - done, metrics, totals, evaluated, self.cost))
            done, diverged_at = target, diverged_at or int(totals.diverged_at) or None
            for callback in callbacks:
                callback(Evaluation(done, self.num_rounds, history[-1], state, diverged_at))
        jax.block_until_ready(state)
        columns = stack_history(history)
        if seconds_per_step is not None and columns:
            columns |= {"client_seconds": client_seconds(columns, seconds_per_step)}
        seconds = time.perf_counter() - started
        params = state.params if self.key.is_fully_addressable else own_copy(state.params)
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

    def _check_memory(self, compiled: Lowered) -> None:
        rows, on_host = self.client_state_bytes, self.lowered.draw is not None
        ways_out = memory.ways_out(*self.walk, bool(rows) and not on_host, self.shardings is not None)
        programs = [(compiled.advance, (self.federation, self.key)), (compiled.evaluate, self.test)]
        memory.check(programs, rows if on_host else 0, ways_out)

    def _seconds_per_step(self, state: RunState) -> float:
        """Seconds that one client needs for a local step, by itself on this device."""
        # On a copy of its own: of several processes, each repeats the pass as often as its own clock requires.
        federation, key, state = own_copy((self.federation, self.key, state))
        if self.lowered.draw is not None:
            state = host_state.take(state, np.arange(self.cohort_size), None)
        program = jax.jit(self.programs.client).lower(federation, key, state).compile()
        return measure_seconds(program, federation, key, state) / TIMED_STEPS

    def _advance(self, compiled: Lowered, state: RunState, done: int, target: int) -> tuple[RunState, Any, Any]:
        """Rounds ``done`` to ``target``: the state, the metrics of the last of them, and the sums over all."""
        metrics, totals = {}, no_totals()
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
        if self.lowered.draw is None:
            return jax.jit(self.programs.init, out_shardings=self.shardings)(self.key)
        # Every client starts from the same row: one on the device is enough.
        first = jax.jit(lambda key: host_state.first_row(self.programs.init(key)), out_shardings=self.key.sharding)
        return host_state.repeat(first(self.key), self.federation.rows.shape[0])

    def _checked(self, initial: RunState) -> RunState:
        like = self.shapes
        if jax.tree.structure(initial) != jax.tree.structure(like):
            raise ValueError("initial: is the state of another algorithm or model")
        for (path, leaf), expected in zip(jax.tree.leaves_with_path(initial), jax.tree.leaves(like), strict=True):
            if np.shape(leaf) != expected.shape:
                name = jax.tree_util.keystr(path)
                raise ValueError(f"initial{name} with shape {np.shape(leaf)}: must be {expected.shape}")

        # A copy, because the compiled rounds reuse the buffers they are given.
        def copied(state: Any, like: Any) -> Any:
            return jax.tree.map(lambda x, e: jnp.array(x, e.dtype, copy=True), state, like)

        if self.lowered.draw is None:
            return place(copied(initial, like), self.shardings or self.key.sharding)
        on_device = copied(per_client.without_rows(initial), per_client.without_rows(like))
        return host_state.with_rows_of(initial, place(on_device, self.key.sharding))


def prepare(algorithm: Algorithm, **settings: Any) -> Simulation:
    """Checks every argument, places the data and traces the run.

    It computes nothing, except that ``clients_axis="auto"``, the default, may time a few local steps (see
    :class:`~fedjax_drag.simulation.settings.Settings`), and that an attack of your own is called once with made-up
    messages, to verify that those of benign clients come back bit for bit.

    Args:
      algorithm: the method.
      **settings: as for :class:`~fedjax_drag.simulation.settings.Settings`.

    Raises:
      ValueError: one line naming the argument, its value and what is allowed.
    """
    asked = Settings(algorithm=algorithm, **settings)
    check_adversary(asked.attack, asked.byzantine_fraction, asked.num_byzantine)
    return trace(asked)


def trace(asked: Settings) -> Simulation:
    """:func:`prepare` of settings that are already checked one by one.

    Raises:
      ValueError: if the settings do not fit together.
    """
    mesh = resolve_mesh(asked.mesh, asked.cohort_size)
    on_host = federate(asked)
    programs, work = programs_of(asked, mesh, asked.num_byzantine_in_cohort)
    shared = everywhere(mesh)
    if mesh is not None and mesh.is_multi_process:
        processes.check_same("data", (on_host, asked.data.test, asked.seed))
    if asked.shard_data and mesh is None:
        raise ValueError(f"shard_data=True with mesh={asked.mesh!r}: needs a mesh of several devices")
    train = divided(on_host.train, mesh) if mesh is not None and asked.shard_data else place(on_host.train, shared)
    federation, test, key = place((on_host._replace(train=()), asked.data.test, jax.random.key(asked.seed)), shared)
    federation = federation._replace(train=train)

    state = jax.eval_shape(programs.init, key)
    without_rows = _shapes(per_client.without_rows(state), shared)
    draw = None
    if asked.client_state == "host" and per_client.found_in(state):
        cohort = functools.partial(choose_cohort, asked.algorithm, asked.cohort_size)
        draw = jax.jit(lambda *inputs: cohort(*inputs)[0], out_shardings=shared).lower(federation, key, without_rows)
        state = jax.eval_shape(per_client.gather, state, jax.ShapeDtypeStruct((asked.cohort_size,), jnp.int32))
    shardings = placement(state, mesh)
    state = _shapes(state, shardings)
    check_benign(asked, programs, federation, key, state)
    advance = jax.jit(programs.advance, donate_argnames="state", out_shardings=(shardings, shared, shared))
    evaluate = jax.jit(programs.evaluate, out_shardings=shared)
    return Simulation(
        federation=federation,
        test=test,
        key=key,
        cohort_size=asked.cohort_size,
        num_rounds=asked.num_rounds,
        eval_every=asked.eval_every,
        rounds_per_compile=asked.rounds_per_compile or asked.eval_every,
        programs=programs,
        lowered=Lowered(
            advance.lower(federation, key, state, no_totals(), np.int32(1)), evaluate.lower(without_rows, test), draw
        ),
        shardings=shardings,
        cost=cost_of(asked.algorithm, work, programs, federation, key, state),
        time_clients=asked.time_clients,
        walk=work.execution.walk,
        stop_on_divergence=asked.stop_on_divergence,
    )


def _shapes(state: Any, shardings: Any) -> Any:
    """Shapes, dtypes and shardings of a state; ``shardings`` is one for all, one for each, or None."""

    def leaf(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    if isinstance(shardings, RunState):
        return jax.tree.map(leaf, state, shardings)
    return jax.tree.map(lambda x: leaf(x, shardings), state)


def simulate(
    algorithm: Algorithm,
    *,
    callbacks: Sequence[Callable[[Evaluation], Any]] = (),
    initial: RunState | None = None,
    **settings: Any,
) -> Result:
    """Runs a federation and returns its parameters and history.

    Args:
      algorithm: the method, e.g. ``from_aggregator(drag(c=0.25, alpha=0.25))``.
      callbacks: called with an :class:`Evaluation` after each evaluation.
      initial: state to continue from, e.g. ``result.state``.
      **settings: the attributes of :class:`~fedjax_drag.simulation.settings.Settings`; ``model``, ``data``,
        ``num_rounds``, ``cohort_size``, ``batch_size`` and ``step_size`` must be given, and one of ``local_steps`` and
        ``local_epochs``.

    Returns:
      A :class:`~fedjax_drag.simulation.result.Result`.

    Raises:
      ValueError: for any setting that is wrong, before anything is computed.
    """
    return prepare(algorithm, **settings).run(callbacks, initial)
