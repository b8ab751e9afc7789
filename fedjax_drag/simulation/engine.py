"""The run: a compiled loop over rounds between evaluations, driven from the host."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from fedjax_drag import checks, per_client
from fedjax_drag.clients import sgd
from fedjax_drag.data import FederatedDataset
from fedjax_drag.data.augmentation import Augmentation
from fedjax_drag.losses import Loss, cross_entropy
from fedjax_drag.simulation import host_state
from fedjax_drag.simulation.arguments import (
    check_attack,
    check_logits,
    check_loss,
    check_sign,
    check_work,
    resolve_axis,
)
from fedjax_drag.simulation.cost import ClientCost, measure_seconds
from fedjax_drag.simulation.federation import Federation, choose_malicious, choose_root, count_malicious, to_device
from fedjax_drag.simulation.mesh import everywhere, make_mapper, placement, resolve_mesh
from fedjax_drag.simulation.metrics import Result, client_seconds, stack_history
from fedjax_drag.simulation.programs import TIMED_STEPS, Programs, cost_of, make_programs, no_totals
from fedjax_drag.simulation.round import RunState, Work, choose_cohort
from fedjax_drag.types import Algorithm, Attack, Batch, ClientRule


class Evaluation(NamedTuple):
    """What a callback receives after each evaluation.

    Attributes:
      round: rounds done.
      num_rounds: rounds of the whole run.
      metrics: this evaluation's row of the history.
      state: the run's state. Its buffers are given to the next rounds: copy what must outlive the callback.
    """

    round: int
    num_rounds: int
    metrics: dict[str, Any]
    state: RunState


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
      shardings: where the parts of the state lie that a round's program sees; None without a mesh.
      cost: what the method asks of one client.
      time_clients: whether :meth:`run` measures how long a local step takes.
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

    @property
    def shapes(self) -> RunState:
        """Shapes and dtypes of a state."""
        return jax.eval_shape(self.programs.init, self.key)

    @property
    def client_state_bytes(self) -> int:
        """Memory of what the method keeps for every client of the federation."""
        return per_client.num_bytes(self.shapes)

    def run(self, callbacks: Sequence[Callable[[Evaluation], Any]] = (), initial: RunState | None = None) -> Result:
        """Compiles, then runs to the last round.

        Args:
          callbacks: each is called on the host after every evaluation.
          initial: state to continue from; default a fresh start.

        Returns:
          The :class:`~fedjax_drag.simulation.metrics.Result`; its history starts after ``initial``.

        Raises:
          ValueError: if ``initial`` does not fit this simulation.
        """
        started = time.perf_counter()
        compiled = Lowered(*(program and program.compile() for program in self.lowered))
        state = self.initial_state() if initial is None else self._checked(initial)
        seconds_per_step = self._measured(state) if self.time_clients else None
        compile_seconds = time.perf_counter() - started

        started = time.perf_counter()
        history: list[dict[str, Any]] = []
        done = int(state.round)
        while done < self.num_rounds:
            target = min(self.num_rounds, (done // self.eval_every + 1) * self.eval_every)
            state, metrics, totals = self._advance(compiled, state, done, target)
            means = {"train_loss": totals["train_loss"] / np.float32(target - done)}
            done = target
            evaluated = compiled.evaluate(host_state.without_rows(state), self.test)
            metrics = jax.device_get(metrics) | totals | means | self.cost.of(totals) | jax.device_get(evaluated)
            history.append({"round": done} | metrics)
            for callback in callbacks:
                callback(Evaluation(done, self.num_rounds, history[-1], state))
        jax.block_until_ready(state)
        columns = stack_history(history)
        if seconds_per_step is not None:
            columns |= {"client_seconds": client_seconds(columns, seconds_per_step)}
        seconds = time.perf_counter() - started
        return Result(state.params, columns, state, seconds, compile_seconds, self.cost, seconds_per_step)

    def _measured(self, state: RunState) -> float:
        """Seconds that one client needs for a local step, by itself on this device."""
        if self.lowered.draw is not None:
            state = host_state.taken(state, np.arange(self.cohort_size), self.shardings)
        program = jax.jit(self.programs.client).lower(self.federation, self.key, state).compile()
        return measure_seconds(program, self.federation, self.key, state) / TIMED_STEPS

    def _advance(self, compiled: Lowered, state: RunState, done: int, target: int) -> tuple[RunState, Any, Any]:
        """Rounds ``done`` to ``target``: the state, the metrics of the last of them, and the sums over all."""
        metrics, totals = {}, no_totals()
        while done < target:
            if compiled.draw is None:
                done = min(target, done + self.rounds_per_compile)
                state, metrics, totals = compiled.advance(self.federation, self.key, state, totals, np.int32(done))
                continue
            done += 1
            client_ids = np.asarray(compiled.draw(self.federation, self.key, host_state.without_rows(state)))
            cohort = host_state.taken(state, client_ids, self.shardings)
            after, metrics, totals = compiled.advance(self.federation, self.key, cohort, totals, np.int32(done))
            state = host_state.stored(state, after, client_ids)
        totals = {name: total for name, total in jax.device_get(totals).items() if name in metrics}
        return state, metrics, totals

    def initial_state(self) -> RunState:
        """The state before the first round."""
        if self.lowered.draw is None:
            return jax.jit(self.programs.init, out_shardings=self.shardings)(self.key)
        # Every client starts from the same row: the device need not hold one for each.
        first = jax.jit(lambda key: host_state.first_row(self.programs.init(key)), out_shardings=self.key.sharding)
        return host_state.repeated(first(self.key), self.federation.rows.shape[0])

    def _checked(self, initial: RunState) -> RunState:
        like = self.shapes
        if jax.tree.structure(initial) != jax.tree.structure(like):
            raise ValueError("initial: is the state of another algorithm or model")
        for (path, leaf), expected in zip(jax.tree.leaves_with_path(initial), jax.tree.leaves(like), strict=True):
            if np.shape(leaf) != expected.shape:
                name = jax.tree_util.keystr(path)
                raise ValueError(f"initial{name} with shape {np.shape(leaf)}: must be {expected.shape}")

        # A copy, because the compiled rounds reuse the buffers they are given.
        def copied(state, like):
            return jax.tree.map(lambda x, e: jnp.array(x, e.dtype, copy=True), state, like)

        if self.lowered.draw is None:
            return jax.device_put(copied(initial, like), self.shardings or self.key.sharding)
        small = copied(host_state.without_rows(initial), host_state.without_rows(like))
        return host_state.with_rows_of(initial, jax.device_put(small, self.key.sharding))


def prepare(
    algorithm: Algorithm,
    *,
    model: nn.Module,
    data: FederatedDataset,
    num_rounds: int,
    cohort_size: int,
    batch_size: int,
    step_size: Any,
    local_steps: int | None = None,
    local_epochs: float | None = None,
    local_optimizer: optax.GradientTransformation | None = None,
    loss: Loss | None = None,
    augmentation: Augmentation | None = None,
    attack: Attack | None = None,
    byzantine_fraction: float = 0.0,
    num_byzantine: int | None = None,
    byzantine_of: str = "federation",
    root_size: int | None = None,
    root_client: ClientRule | None = None,
    eval_every: int = 10,
    seed: int = 0,
    nonfinite: str = "reject",
    clients_axis: str = "auto",
    clients_per_chunk: int | None = None,
    mesh: Mesh | str | None = None,
    rounds_per_compile: int | None = None,
    diagnostics: bool = True,
    client_state: str = "device",
    time_clients: bool = True,
) -> Simulation:
    """Checks every argument, places the data and traces the run, without computing anything.

    Args are those of :func:`simulate`.

    Raises:
      ValueError: one line naming the argument, its value and what is allowed.
    """
    if data.rows is None or data.counts is None:
        raise ValueError(
            f"data={data.name!r}: not yet split among clients; apply fd.data.partition.dirichlet or another"
        )
    checks.count("num_rounds", num_rounds, 1)
    checks.count("cohort_size", cohort_size, 1, data.num_clients)
    check_work(local_steps, local_epochs, step_size, num_rounds)
    checks.count("batch_size", batch_size, 1)
    checks.count("eval_every", eval_every, 1)
    checks.count("seed", seed, 0, 2**63 - 1)
    checks.one_of("nonfinite", nonfinite, ("reject", "propagate"))
    checks.one_of("client_state", client_state, ("device", "host"))
    if clients_per_chunk is not None:
        checks.count("clients_per_chunk", clients_per_chunk, 1)
    if rounds_per_compile is not None:
        checks.count("rounds_per_compile", rounds_per_compile, 1)
    axis = resolve_axis(clients_axis, clients_per_chunk)
    mesh = resolve_mesh(mesh, cohort_size)

    number = count_malicious(data.num_clients, cohort_size, byzantine_fraction, num_byzantine, byzantine_of)
    malicious = choose_malicious(data.num_clients, number if byzantine_of == "federation" else 0, seed)
    if not number:
        attack = None  # the same program, and so the same bits, as a run without attack
    uses_root = "root_delta" in algorithm.needs
    root_row = choose_root(data, malicious, root_size) if uses_root else np.zeros(0, np.int32)
    check_attack(attack, uses_root)

    example = jnp.zeros((1, *data.input_shape), jax.eval_shape(data.preprocess, data.train.x[:1]).dtype)
    apply, init_params = _functions_of(model, example)
    loss = loss or cross_entropy()
    check_loss(loss, data.num_classes)
    work = Work(
        apply,
        loss,
        data.preprocess,
        data.num_classes,
        cohort_size,
        local_steps,
        batch_size,
        step_size,
        make_mapper(axis, clients_per_chunk, mesh),
        mesh,
        reject_nonfinite=nonfinite == "reject",
        root_client=root_client or sgd(),
        local_epochs=local_epochs,
        local_optimizer=local_optimizer,
        augmentation=augmentation,
    )
    programs = make_programs(algorithm, attack, work, init_params, diagnostics)
    shared = everywhere(mesh)
    placed_data = to_device(data, malicious, root_row, number if byzantine_of == "cohort" else None)
    federation, test, key = jax.device_put((placed_data, data.test, jax.random.key(seed)), shared)

    state = jax.eval_shape(programs.init, key)
    if local_optimizer is not None:
        check_sign(local_optimizer, state.params)
    check_logits(jax.eval_shape(apply, state.params, example), data.num_classes)
    small = _shapes(host_state.without_rows(state), shared)
    draw = None
    if client_state == "host" and per_client.found_in(state):
        cohort = functools.partial(choose_cohort, algorithm, cohort_size)
        draw = jax.jit(lambda *inputs: cohort(*inputs)[0], out_shardings=shared).lower(federation, key, small)
        state = jax.eval_shape(per_client.gather, state, jax.ShapeDtypeStruct((cohort_size,), jnp.int32))
    shardings = placement(state, mesh)
    seen = _shapes(state, shardings)
    advance = jax.jit(programs.advance, donate_argnames="state", out_shardings=(shardings, shared, shared))
    evaluate = jax.jit(programs.evaluate, out_shardings=shared)
    return Simulation(
        federation,
        test,
        key,
        cohort_size,
        num_rounds,
        eval_every,
        rounds_per_compile or eval_every,
        programs,
        Lowered(advance.lower(federation, key, seen, no_totals(), np.int32(1)), evaluate.lower(small, test), draw),
        shardings,
        cost_of(algorithm, work, programs, federation, key, seen),
        time_clients,
    )


def _functions_of(model: nn.Module, example: jax.Array) -> tuple[Callable[..., Any], ...]:
    """``(params, x) -> logits`` and ``(key) -> params`` of a model, for inputs such as ``example`` ``[1, ...]``."""

    def apply(params, x) -> Any:
        return model.apply({"params": params}, x)

    def init_params(key):
        variables = model.init(key, example)
        if set(variables) != {"params"}:
            extra = ", ".join(sorted(set(variables) - {"params"}))
            raise ValueError(
                f"model={type(model).__name__}: has collections beside 'params' ({extra}); running statistics have no "
                "meaning across clients, use GroupNorm or LayerNorm"
            )
        return variables["params"]

    return apply, init_params


def _shapes(state: Any, shardings: Any) -> Any:
    """Shapes, dtypes and places of a state; ``shardings`` is one for all, one for each, or None."""

    def leaf(x, sharding):
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
      **settings: as for :func:`prepare`:

        - model: a Flax module with only a ``params`` collection, inputs to logits ``[B, C]``.
        - data: a partitioned :class:`~fedjax_drag.data.FederatedDataset`.
        - num_rounds: rounds T, >= 1.
        - cohort_size: clients in a round S, at most the number of clients.
        - batch_size: B, >= 1.
        - step_size: local step size eta, > 0, or a function of the round (int32, from 0), such as an optax schedule.
          A number may be traced.
        - local_steps: U, >= 1, mini-batches of a local pass, each drawn uniformly from the client's data.
        - local_epochs: instead of ``local_steps``, how often a pass goes over the client's data, > 0 and not
          necessarily whole: a client with n examples takes ``round(local_epochs * n)`` of them, at least one. Each
          epoch is in an order of its own, without replacement, its last batch smaller than the others where B
          does not divide n. Clients that are done wait for those that run at the same time; under ``"map"`` one
          client runs at a time and nobody waits. The server goes over its root data as often.
        - local_optimizer: an optax transformation through which the directions of the client rule go before the step
          ``w -= step_size * transformed``; default none. It starts afresh in every local pass and leaves
          the learning rate to ``step_size``: ``optax.trace(0.9)`` for momentum,
          ``optax.chain(optax.add_decayed_weights(1e-4), optax.trace(0.9))`` for SGD as elsewhere with both, but not
          ``optax.sgd(0.1, 0.9)``, which would climb. The server's root pass uses it too. Methods that take every
          step to be ``step_size`` times the client rule's own direction are then approximate: SCAFFOLD and FedDC, which
          divide deltas by the sum of the step sizes, STEM, TACO and FedNova.
        - loss: what is minimised, ``(logits [B, C], labels [B]) -> [B]``; default
          :func:`~fedjax_drag.losses.cross_entropy`. It also gives ``test_loss``.
        - augmentation: ``(key, x [B, ...]) -> x``, applied to every training batch after normalisation and before an
          attack on the data, such as :func:`~fedjax_drag.data.augmentation.crop_flip`; default none.
        - attack: what malicious clients do; default None.
        - byzantine_fraction: share of malicious clients, in [0, 1]; default 0.
        - num_byzantine: their number, instead of ``byzantine_fraction``.
        - byzantine_of: of what they are a part: of the ``"federation"`` (default), the same clients throughout the run,
          drawn by ``seed``; or of every ``"cohort"``, drawn anew in each round, all of them knowing what the server
          tells them. Root data come from clients that are not malicious throughout.
        - root_size: examples of the server's root data for rules that need it; default 3,000, or a tenth of the
          benign clients' data where that is less.
        - root_client: what the server runs on its root data, for rules that need it; default
          :func:`~fedjax_drag.clients.sgd`. :func:`~fedjax_drag.clients.robust_sgd` guards against wrong labels there.
        - eval_every: rounds between evaluations on the test set; default 10.
        - seed: of everything random; default 0.
        - nonfinite: ``"reject"`` clients whose message is not finite, or ``"propagate"``.
        - clients_axis: ``"vmap"``, ``"map"`` or ``"auto"``.
        - clients_per_chunk: clients that run at once under ``"map"``; default 1.
        - mesh: a ``jax.sharding.Mesh`` of one axis over whose devices the clients are sharded; ``cohort_size`` must be
          a multiple of their number. ``"cores"``: as many local devices as divide the cohort. Default one device.
        - rounds_per_compile: most rounds between two visits to the host; default ``eval_every``.
        - client_state: where the rows lie that a method keeps for every client, such as SCAFFOLD's control variates:
          ``"device"``, or ``"host"``, from where only the cohort's rows travel, with the same results bit for bit.
          :attr:`Simulation.client_state_bytes` says what they need.
        - time_clients: whether to measure, before the first round, how long a client needs for a local step; then the
          history has ``client_seconds``, and ``time_to`` can be asked. It costs the compilation of one local pass.
        - diagnostics: whether the history keeps per-client metrics; default True.

    Returns:
      A :class:`~fedjax_drag.simulation.metrics.Result`.

    Raises:
      ValueError: for any setting that is wrong, before anything is computed.
    """
    return prepare(algorithm, **settings).run(callbacks, initial)
