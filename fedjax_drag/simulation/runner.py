"""A checked run: compiled, then driven from evaluation to evaluation."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag import per_client, stopping
from fedjax_drag.selection import Selected
from fedjax_drag.simulation.criterion import Criterion
from fedjax_drag.simulation.devices import host_state, memory
from fedjax_drag.simulation.devices.host_state import DEVICE, HOST
from fedjax_drag.simulation.devices.placement import everywhere, fetch, own_copy, place, placement
from fedjax_drag.simulation.driver import Schedule, Track, drive, said
from fedjax_drag.simulation.model.initial_params import Start
from fedjax_drag.simulation.option_groups import STATE
from fedjax_drag.simulation.planning.compatibility import check_jit
from fedjax_drag.simulation.planning.outline import ClientCost, Lowered, Outline, lowered, measure_seconds
from fedjax_drag.simulation.planning.spending import Spent
from fedjax_drag.simulation.program import programs
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import TIMED_STEPS, has_own_models, own_examples
from fedjax_drag.simulation.result import Result
from fedjax_drag.simulation.run import Inputs, Run, RunState
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
    """A checked run with its data, ready to be compiled and started by :meth:`run`.

    Attributes:
      spec: the run as a value.
      outline: what is known of it from shapes.
      federation: data on the device.
      test: test examples on the device.
      validation: validation examples on the device; None where the data have none.
      key: from which all randomness is derived.
      given: from which the run starts, on the host; None to draw it.
      num_rounds: rounds of the run.
      eval_every: rounds between evaluations.
      rounds_per_compile: most rounds between two visits to the host.
      time_clients: whether :meth:`run` measures how long a local step takes.
      stop_on_divergence: whether a run whose parameters are not finite ends.
      spent: privacy spent after some rounds.
      criterion: by what rounds are chosen.
    """

    spec: Run
    outline: Outline
    federation: Federation
    test: Batch
    validation: Batch | None
    key: jax.Array
    given: Start | None
    num_rounds: int
    eval_every: int
    rounds_per_compile: int
    time_clients: bool
    stop_on_divergence: bool
    spent: Spent
    criterion: Criterion

    @property
    def inputs(self) -> Inputs:
        """What its programs are given beside the state."""
        return Inputs(self.spec, self.federation, self.key)

    @property
    def shapes(self) -> RunState:
        """Shapes and dtypes of a state."""
        return self.outline.shapes

    @property
    def cost(self) -> ClientCost:
        """What the method asks of one client."""
        return self.outline.cost

    @property
    def batching(self) -> ClientBatching:
        """How a device goes through its clients of a round."""
        return self.spec.batching

    @property
    def mesh(self) -> Mesh | None:
        """Devices that share the clients; None for one device."""
        return self.spec.mesh

    @property
    def client_state_bytes(self) -> int:
        """Bytes of what is kept for every client of the federation, by the method and by the engine."""
        return per_client.num_bytes(self.shapes)

    @functools.cached_property
    def lowered(self) -> Lowered:
        """The programs for rounds and for the evaluation, traced."""
        return lowered(self.inputs, self.outline, (self.test, self.validation))

    def run(self, callbacks: Sequence[Callable[[Evaluation], Any]] = (), initial: RunState | None = None) -> Result:
        """Compiles, then runs to the last round, or to the first evaluation after which it is to end.

        That is one after the parameters diverged, or one for which a callback returns True or a
        :class:`~fedjax_drag.simulation.driver.Reason`. An exception of a callback carries what was computed so far as
        its attribute ``result``, and Ctrl-C the measured ``seconds_per_step``. What has been compiled in this process
        for a run of equal structure and shapes is used again, whatever its numbers.

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
        check_jit()
        memory.make_room()
        begin = self.initial_state if initial is None else lambda: self._checked(initial)
        if initial is not None and int(getattr(initial, "round", 0)) >= self.num_rounds:  # nothing is left to compute
            state = begin()
        else:
            compiled, state = self._compiled(begin)
            self._check_memory(compiled)
        seconds_per_step = self._seconds_per_step(state) if self.time_clients else None
        compile_seconds = time.perf_counter() - started

        started = time.perf_counter()
        reports = self.spec.model.metrics, self.spec.diagnostics, self.stop_on_divergence, self.criterion
        track = Track(self.cost, self.spent, *reports)

        def result(state: RunState) -> Result:
            jax.block_until_ready(state)
            ended = track.result(state, time.perf_counter() - started, compile_seconds, seconds_per_step)
            if self.key.is_fully_addressable:
                return ended
            return ended._replace(params=(fetch if self.spec.specs else own_copy)(ended.params))

        def record(state: RunState, before: int, done: int, measured: Any) -> bool:
            row = track.add(before, done, measured)
            try:
                for callback in callbacks:
                    answer = callback(Evaluation(done, self.num_rounds, dict(row), state, track.diverged_at))
                    if done < self.num_rounds:
                        track.ended = track.ended or said(answer, done)
            except BaseException as error:
                error.result = result(state)  # pyright: ignore[reportAttributeAccessIssue]
                error.add_note(f"The run up to round {done} is this exception's attribute 'result'.")
                raise
            return not track.is_over

        rows_travel = self.outline.rows_on != DEVICE
        schedule = Schedule(self.num_rounds, self.eval_every, 1 if rows_travel else self.rounds_per_compile)
        step = self._advance_cohort if rows_travel else self._advance
        totals = place(programs.no_totals(self.spec), everywhere(self.mesh))  # where the programs leave them
        try:
            return result(drive(schedule, state, int(state.round), totals, step, self._evaluate, record))
        except KeyboardInterrupt as stopped:
            stopped.seconds_per_step = seconds_per_step  # pyright: ignore[reportAttributeAccessIssue]
            raise

    def _compiled(self, begin: Callable[[], RunState]) -> tuple[list[Any], RunState]:
        """The programs compiled, while the first state is made."""
        if self.mesh is not None and self.mesh.is_multi_process:  # all processes compile in the same order
            return [program and program.compile() for program in self.lowered], begin()
        return memory.compiled(self.lowered, begin)

    def _check_memory(self, compiled: Sequence[Any]) -> None:
        rows, rows_on = self.client_state_bytes, self.outline.rows_on
        ways_out = memory.ways_out(*self.batching, rows_on if rows else None, self.mesh is not None)
        advanced = self.federation._replace(held_out=None, client_test=None), self.key
        present = advanced, (self.test, self.validation, self.federation.evaluated)
        needs = zip(map(memory.needed, compiled[:2]), present, strict=True)
        memory.check(needs, rows if rows_on == HOST else 0, ways_out)

    def _seconds_per_step(self, state: RunState) -> float:
        """Seconds that one client needs for a local step, by itself on this device."""
        # On a copy of its own: of several processes, each repeats the pass as often as its own clock requires.
        federation, key, state = own_copy((self.federation, self.key, state))
        if self.outline.rows_on != DEVICE:
            state = host_state.take(state, np.arange(self.spec.cohort_size), None, self.shapes)
        alone = dataclasses.replace(self.spec, mesh=None, shard_data=False)
        return measure_seconds(programs.client, Inputs(alone, federation, key), state) / TIMED_STEPS

    def _advance(self, state: RunState, totals: Any, stop: Any, *selected: Selected) -> tuple[RunState, Any, Any]:
        return programs.advance(self.inputs, state, totals, stop, *selected)

    def _advance_cohort(self, state: RunState, totals: Any, stop: Any) -> tuple[RunState, Any, Any]:
        """One round, for which the rows of its cohort travel to the device and back."""
        without_rows = per_client.without_rows(state)
        selected = programs.draw(self.inputs, without_rows)
        client_ids = np.asarray(selected.client_ids)
        cohort = host_state.take(state, client_ids, self.outline.shardings, self.shapes)
        after, metrics, totals = self._advance(cohort, totals, stop, selected)
        return host_state.store(state, after, client_ids), metrics, totals

    def _evaluate(self, state: RunState) -> dict[str, jax.Array]:
        own = own_examples(self.federation, state)
        metrics = programs.evaluate(self.spec, per_client.without_rows(state), self.test, self.validation, own)
        if not has_own_models(self.inputs):
            return metrics
        if self.outline.rows_on == DEVICE:
            clients = np.arange(self.spec.num_clients, dtype=np.int32)
            return metrics | programs.evaluate_own(self.inputs, state, clients)
        return metrics | self._evaluate_own_by_cohorts(state)

    def _evaluate_own_by_cohorts(self, state: RunState) -> dict[str, np.ndarray]:
        """The evaluation of clients' own models, of which as many as in a round are on the device at a time."""
        number, size = self.spec.num_clients, self.spec.cohort_size
        parts = []
        for begin in range(0, number, size):
            clients = np.minimum(np.arange(begin, begin + size, dtype=np.int32), number - 1)
            cohort = host_state.take(state, clients, self.outline.shardings, self.shapes)
            parts.append(jax.device_get(programs.evaluate_own(self.inputs, cohort, clients)))
        return {name: np.concatenate([part[name] for part in parts])[:number] for name in parts[0]}

    def initial_state(self) -> RunState:
        """The state before the first round."""
        given, rows_on = self._placed(self.given), self.outline.rows_on
        state = programs.init(self.spec, self.key, given, one_row=rows_on != DEVICE)
        return state if rows_on == DEVICE else host_state.repeat(state, self.federation.rows.shape[0], rows_on)

    def _checked(self, initial: RunState) -> RunState:
        STATE.check("initial", initial)
        like = self.shapes
        if jax.tree.structure(initial) != jax.tree.structure(like):
            raise ValueError(
                "initial: is the state of another algorithm or model; must be one of this run's, as is "
                "prepare(...).initial_state()"
            )
        initial = jax.tree.map(host_state.revived, initial, like)
        for (path, leaf), expected in zip(jax.tree.leaves_with_path(initial), jax.tree.leaves(like), strict=True):
            if np.shape(leaf) != expected.shape:
                name = jax.tree_util.keystr(path)
                raise ValueError(f"initial{name} with shape {np.shape(leaf)}: must be {expected.shape}")

        # A copy, because the compiled rounds reuse the buffers they are given. A device may hold less than the host.
        def copy(x: Any, like: Any) -> Any:
            return np.array(x, like.dtype) if isinstance(x, np.ndarray) else jnp.array(x, like.dtype, copy=True)

        copied = functools.partial(jax.tree.map, copy)

        if self.outline.rows_on == DEVICE:
            return place(copied(initial, like), self.outline.shardings)
        on_device = copied(per_client.without_rows(initial), per_client.without_rows(like))
        return host_state.with_rows_of(initial, self._placed(on_device), self.outline.rows_on)

    def _placed(self, values: Any) -> Any:
        """``values`` without rows of clients on the devices of the run."""
        return place(values, placement(values, self.mesh, self.spec.specs))
