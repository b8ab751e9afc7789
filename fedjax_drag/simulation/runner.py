"""A traced run: compiled, then driven from evaluation to evaluation."""

import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag import per_client, stopping
from fedjax_drag.simulation.client_cost import ClientCost, measure_seconds
from fedjax_drag.simulation.devices import host_state, nans, program_cache
from fedjax_drag.simulation.devices.host_state import DEVICE, HOST
from fedjax_drag.simulation.devices.placement import everywhere, own_copy, place
from fedjax_drag.simulation.every_client.accuracies import by_client_and_class
from fedjax_drag.simulation.model.start import Start
from fedjax_drag.simulation.model.trainable import joined
from fedjax_drag.simulation.parts import STATE
from fedjax_drag.simulation.planning import memory
from fedjax_drag.simulation.planning.early_stopping import said
from fedjax_drag.simulation.planning.privacy import Spent
from fedjax_drag.simulation.planning.tracing import Lowered, Shared, Traced
from fedjax_drag.simulation.program.attack_metrics import UNDEFINED
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import TIMED_STEPS, Programs, own_examples
from fedjax_drag.simulation.program.work import RunState
from fedjax_drag.simulation.result import Result, history_row, stack_history, with_client_seconds
from fedjax_drag.types import Batch


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
        """Compiles, then runs to the last round, or to the first evaluation after which it is to end.

        That is one after the parameters diverged, or one for which a callback returns True or a
        :class:`~fedjax_drag.simulation.planning.early_stopping.Reason`. An exception of a callback carries what was
        computed so far as its attribute ``result``.

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
        stopping.check()
        program_cache.check_jit()
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
        done, diverged_at, ended = int(state.round), None, None

        def result() -> Result:
            jax.block_until_ready(state)
            params = joined(state.params, state.model.frozen)
            return Result(
                params=params if self.key.is_fully_addressable else own_copy(params),
                history=with_client_seconds(stack_history(history), seconds_per_step),
                state=state,
                seconds=time.perf_counter() - started,
                compile_seconds=compile_seconds,
                cost=self.cost,
                seconds_per_step=seconds_per_step,
                diverged_at=diverged_at,
                ended_early=ended,
            )

        while done < self.num_rounds and not ended and not (diverged_at and self.stop_on_divergence):
            target = min(self.num_rounds, (done // self.eval_every + 1) * self.eval_every)
            state, metrics, totals = self._advance(compiled, state, done, target)
            with nans.unchecked():
                own = own_examples(self.federation, state)
                evaluated = compiled.evaluate(per_client.without_rows(state), self.test, self.validation, own)
            nans.check(target, {"evaluation": evaluated})
            metrics, totals, evaluated = jax.device_get((metrics, totals, evaluated))
            evaluated = by_client_and_class(evaluated, self.diagnostics)
            row = history_row(target, target - done, metrics, totals, evaluated, self.cost, self.spent(target))
            history.append(row)
            done, diverged_at = target, diverged_at or int(totals.diverged_at) or None
            try:
                for callback in callbacks:
                    answer = callback(Evaluation(done, self.num_rounds, dict(row), state, diverged_at))
                    ended = ended or said(answer, done)
            except BaseException as error:
                error.result = result()  # pyright: ignore[reportAttributeAccessIssue]
                error.add_note(f"The run up to round {done} is this exception's attribute 'result'.")
                raise
        return result()

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
        at_once = 1 if nans.are_sought() else self.rounds_per_compile
        while done < target:
            stopping.check()
            done = min(target, done + (at_once if compiled.draw is None else 1))
            with nans.unchecked():
                if compiled.draw is None:
                    state, metrics, totals = compiled.advance(self.federation, self.key, state, totals, np.int32(done))
                else:
                    client_ids = np.asarray(compiled.draw(self.federation, self.key, per_client.without_rows(state)))
                    cohort = host_state.take(state, client_ids, self.shardings)
                    after, metrics, totals = compiled.advance(self.federation, self.key, cohort, totals, np.int32(done))
                    state = host_state.store(state, after, client_ids)
            nans.check(done, {"state": state, "metrics": metrics, "totals": totals}, UNDEFINED)
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
