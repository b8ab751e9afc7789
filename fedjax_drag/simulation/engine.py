"""The run: a compiled loop over rounds between evaluations, driven from the host."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag import checks, tree
from fedjax_drag.clients import sgd
from fedjax_drag.data import FederatedDataset
from fedjax_drag.simulation import sampling
from fedjax_drag.simulation.federation import Federation, choose_malicious, choose_root, to_device
from fedjax_drag.simulation.mesh import everywhere, make_mapper, resolve_mesh
from fedjax_drag.simulation.metrics import Result, cross_entropy, make_evaluate, stack_history
from fedjax_drag.simulation.round import RunState, Work, make_round
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


class Programs(NamedTuple):
    """The run as pure functions.

    Attributes:
      init: ``(key) -> state``.
      advance: ``(federation, key, state, stop) -> (state, metrics)``: rounds up to ``stop``; metrics of the last
        round, ``train_loss`` averaged and ``num_rejected`` summed over the rounds advanced.
      evaluate: ``(state, test) -> metrics``: of the parameters, and of the algorithm's own output if it has one.
    """

    init: Callable[[jax.Array], RunState]
    advance: Callable[..., tuple[RunState, dict[str, jax.Array]]]
    evaluate: Callable[..., dict[str, jax.Array]]


def make_programs(
    algorithm: Algorithm,
    attack: Attack | None,
    work: Work,
    apply: Callable[..., jax.Array],
    init_params: Callable[[jax.Array], Any],
    diagnostics: bool = True,
) -> Programs:
    """Builds the pure functions of a run.

    Args:
      algorithm: the method.
      attack: what malicious clients do, or None.
      work: what the clients do.
      apply: ``(params, x) -> logits``.
      init_params: ``(key) -> params``.
      diagnostics: whether to report per-client metrics; what nobody reads is not computed.
    """
    round_fn = make_round(algorithm, attack, work)

    def init(key):
        params = init_params(sampling.stream(key, "init"))
        return RunState(params, algorithm.init(params), jnp.zeros((), jnp.int32))

    def advance(federation, key, state, stop):
        def reported_round(state, scratch=None):
            after, metrics, scratch = round_fn(federation, key, state, scratch)
            # Per-client metrics have no fixed shape in the state: they leave through the history alone.
            after = tree.settle(after, state)
            return after, {name: x for name, x in metrics.items() if diagnostics or not jnp.ndim(x)}, scratch

        def one_round(_, carry):
            state, before, scratch = carry
            state, metrics, scratch = reported_round(state, scratch)
            sums = {name: before[name] + metrics[name] for name in ("train_loss", "num_rejected") if name in metrics}
            return state, metrics | sums, scratch

        first = state.round
        shapes = jax.eval_shape(reported_round, state)[1:]
        blank = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)
        state, metrics, _ = jax.lax.fori_loop(first, stop, one_round, (state, *blank))
        return state, metrics | {"train_loss": metrics["train_loss"] / (stop - first)}

    measure = make_evaluate(apply, work.preprocess, work.mesh)

    def evaluate(state, test):
        metrics = measure(state.params, test)
        if algorithm.output is None:
            return metrics
        handed_out = measure(algorithm.output(state.params, state.algorithm), test)
        return metrics | {name.replace("test_", "output_"): value for name, value in handed_out.items()}

    return Programs(init, advance, evaluate)


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A checked and traced run, ready to be compiled and started by :meth:`run`.

    Attributes:
      federation: data on the device.
      test: test examples on the device.
      key: from which all randomness is derived.
      num_rounds: rounds of the run.
      eval_every: rounds between evaluations.
      rounds_per_compile: most rounds between two visits to the host.
      programs: the run as pure functions.
      lowered: ``advance`` and ``evaluate``, traced for these shapes.
    """

    federation: Federation
    test: Batch
    key: jax.Array
    num_rounds: int
    eval_every: int
    rounds_per_compile: int
    programs: Programs
    lowered: tuple[Any, Any]

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
        advance, evaluate = (program.compile() for program in self.lowered)
        state = self.initial_state() if initial is None else self._checked(initial)
        compile_seconds = time.perf_counter() - started

        started = time.perf_counter()
        history: list[dict[str, Any]] = []
        done = int(state.round)
        while done < self.num_rounds:
            target = min(self.num_rounds, (done // self.eval_every + 1) * self.eval_every)
            parts = []
            while done < target:
                stop = min(target, done + self.rounds_per_compile)
                state, metrics = advance(self.federation, self.key, state, np.int32(stop))
                parts.append((stop - done, metrics))
                done = stop
            metrics = _merge(parts) | jax.device_get(evaluate(state, self.test))
            history.append({"round": done} | metrics)
            for callback in callbacks:
                callback(Evaluation(done, self.num_rounds, history[-1], state))
        jax.block_until_ready(state)
        return Result(state.params, stack_history(history), state, time.perf_counter() - started, compile_seconds)

    def initial_state(self) -> RunState:
        """The state before the first round."""
        return jax.jit(self.programs.init, out_shardings=self.key.sharding)(self.key)

    def _checked(self, initial: RunState) -> RunState:
        like = jax.eval_shape(self.initial_state)
        if jax.tree.structure(initial) != jax.tree.structure(like):
            raise ValueError("initial: is the state of another algorithm or model")
        for (path, leaf), expected in zip(jax.tree.leaves_with_path(initial), jax.tree.leaves(like), strict=True):
            if np.shape(leaf) != expected.shape:
                name = jax.tree_util.keystr(path)
                raise ValueError(f"initial{name} with shape {np.shape(leaf)}: must be {expected.shape}")
        # A copy, because the compiled rounds reuse the buffers they are given.
        copied = jax.tree.map(lambda x, e: jnp.array(x, e.dtype, copy=True), initial, like)
        return jax.device_put(copied, self.key.sharding)


def _merge(parts: list[tuple[int, dict[str, jax.Array]]]) -> dict[str, np.ndarray]:
    """One row of metrics from consecutive stretches of rounds, each with its length."""
    lengths = np.array([length for length, _ in parts])
    rows = [jax.device_get(metrics) for _, metrics in parts]
    merged = dict(rows[-1])
    merged["train_loss"] = np.average([row["train_loss"] for row in rows], weights=lengths)
    if "num_rejected" in merged:
        merged["num_rejected"] = sum(row["num_rejected"] for row in rows)
    return merged


def prepare(
    algorithm: Algorithm,
    *,
    model: nn.Module,
    data: FederatedDataset,
    num_rounds: int,
    cohort_size: int,
    local_steps: int,
    batch_size: int,
    step_size: Any,
    attack: Attack | None = None,
    byzantine_fraction: float = 0.0,
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
    checks.count("local_steps", local_steps, 1)
    checks.count("batch_size", batch_size, 1)
    checks.positive("step_size", step_size)
    checks.count("eval_every", eval_every, 1)
    checks.count("seed", seed, 0, 2**63 - 1)
    checks.one_of("nonfinite", nonfinite, ("reject", "propagate"))
    if clients_per_chunk is not None:
        checks.count("clients_per_chunk", clients_per_chunk, 1)
    if rounds_per_compile is not None:
        checks.count("rounds_per_compile", rounds_per_compile, 1)
    axis = _resolve_axis(clients_axis, clients_per_chunk)
    mesh = resolve_mesh(mesh, cohort_size)

    malicious = choose_malicious(data.num_clients, byzantine_fraction, seed)
    if not malicious.any():
        attack = None  # the same program, and so the same bits, as a run without attack
    uses_root = "root_delta" in algorithm.needs
    root_row = choose_root(data, malicious, root_size) if uses_root else np.zeros(0, np.int32)

    def apply(params, x) -> Any:
        return model.apply({"params": params}, x)

    def init_params(key):
        variables = model.init(key, jnp.zeros((1, *data.input_shape)))
        if set(variables) != {"params"}:
            extra = ", ".join(sorted(set(variables) - {"params"}))
            raise ValueError(
                f"model={type(model).__name__}: has collections beside 'params' ({extra}); running statistics have no "
                "meaning across clients, use GroupNorm or LayerNorm"
            )
        return variables["params"]

    def loss_fn(params, batch):
        return cross_entropy(apply(params, batch.x), batch.y).mean()

    work = Work(
        loss_fn,
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
        apply=apply,
    )
    programs = make_programs(algorithm, attack, work, apply, init_params, diagnostics)
    shared = everywhere(mesh)
    test = Batch(jnp.asarray(data.test.x), jnp.asarray(data.test.y))
    federation, test, key = jax.device_put((to_device(data, malicious, root_row), test, jax.random.key(seed)), shared)

    state = jax.eval_shape(programs.init, key)
    _check_logits(jax.eval_shape(apply, state.params, jnp.zeros((1, *data.input_shape))), data.num_classes)
    state = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=shared), state)
    lowered = (
        jax.jit(programs.advance, donate_argnames="state", out_shardings=shared).lower(
            federation, key, state, np.int32(1)
        ),
        jax.jit(programs.evaluate, out_shardings=shared).lower(state, test),
    )
    return Simulation(
        federation, test, key, num_rounds, eval_every, rounds_per_compile or eval_every, programs, lowered
    )


def _resolve_axis(clients_axis: str, clients_per_chunk: int | None) -> str:
    checks.one_of("clients_axis", clients_axis, ("auto", "vmap", "map"))
    if clients_axis == "vmap" and clients_per_chunk is not None:
        raise ValueError(f"clients_per_chunk={clients_per_chunk}: goes with clients_axis='map', not 'vmap'")
    if clients_axis != "auto":
        return clients_axis
    return "map" if clients_per_chunk is not None or jax.default_backend() == "cpu" else "vmap"


def _check_logits(logits: Any, num_classes: int) -> None:
    if logits.shape != (1, num_classes):
        raise ValueError(f"model: returns shape {logits.shape} for one example; must be (1, {num_classes}), the logits")


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
        - local_steps: U, >= 1.
        - batch_size: B, >= 1, drawn uniformly from the client's data.
        - step_size: local step size eta, > 0.
        - attack: what malicious clients do; default None.
        - byzantine_fraction: share of malicious clients in the federation, in [0, 1]; default 0.
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
        - diagnostics: whether the history keeps per-client metrics; default True.

    Returns:
      A :class:`~fedjax_drag.simulation.metrics.Result`.

    Raises:
      ValueError: for any setting that is wrong, before anything is computed.
    """
    return prepare(algorithm, **settings).run(callbacks, initial)
