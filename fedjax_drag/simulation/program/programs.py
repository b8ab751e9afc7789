"""The programs of a run, as pure functions of it: the start, rounds, the evaluation, one client's work by itself.

Each is compiled by ``jax.jit`` itself. A run is an argument of every one of them, its numbers are inputs: what has been
traced and compiled for one run serves all of equal ``jax.tree.structure`` and shapes.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from fedjax_drag import per_client, tree
from fedjax_drag.compression import _channel as channel
from fedjax_drag.selection import Selected
from fedjax_drag.simulation.devices import host_state
from fedjax_drag.simulation.devices.placement import everywhere, placed
from fedjax_drag.simulation.model.initial_params import Start, started
from fedjax_drag.simulation.model.model import ModelState
from fedjax_drag.simulation.program.evaluation import Goal, OwnExamples, evaluate_clients, evaluate_model
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.keys import round_key, stream
from fedjax_drag.simulation.program.local import client_pass
from fedjax_drag.simulation.program.own_models import evaluate_own_models
from fedjax_drag.simulation.program.round import choose_cohort, one_round, who_can_be_drawn
from fedjax_drag.simulation.run import (
    NOTHING_KEPT,
    Broadcast,
    ClientInput,
    ClientRows,
    Inputs,
    LocalResult,
    RoundInput,
    Run,
    RunState,
)
from fedjax_drag.types import Algorithm, Batch, Downlink, Params, State, Uplink
from fedjax_drag.types._messages import client_params
from fedjax_drag.types._part import value_of

Metrics = dict[str, jax.Array]
"""Metrics of a round by name: scalars, or ``[S]``, an entry for each client."""


SUMMED: Mapping[str, Any] = {
    "train_loss": np.float32,
    "num_rejected": np.int32,
    "participants": np.int32,
    "drawn": np.int32,
    "silent_rounds": np.int32,
    "local_steps": np.int32,
    "slowest_steps": np.int32,
    "seconds": np.float32,
    "num_too_stale": np.int32,
}
"""Types of the scalar metrics that are added up over rounds, where a round has them.

A row of the history has their sum over the rounds since the row before, of ``train_loss`` the mean over those of them
that were not silent, and all other metrics from the evaluated round.
"""

_OF_SOME: Mapping[str, Callable[[Run], bool]] = {
    "drawn": lambda run: run.may_be_absent,
    "silent_rounds": lambda run: run.may_be_silent,
    "seconds": lambda run: run.clock is not None,
    "num_too_stale": lambda run: run.clock is not None,
}
"""Those of them that not all runs have, and which do."""

_OUTPUT, _VALIDATION, _OUTPUT_VALIDATION = "output_", "validation_", "output_validation_"
"""What the names in the history begin with of what is evaluated of the algorithm's output, where that is another model
than the parameters; of the parameters on the validation examples; and of the output there."""

_TAKEN = {
    *("round", "epsilon", "client_seconds", "output_attack_success_rate", "validation_attack_success_rate"),
    *_OF_SOME,
}
"""Columns of the history that a metric of a rule would replace, or stand for where a run has none of its own; those of
:func:`_measured` are others."""

ROUNDS = "rounds"
"""In a compiled program, the name of the loop over rounds."""

TIMED_STEPS = 10
"""Local steps of :func:`client`."""


class Totals(NamedTuple):
    """What is accumulated over rounds.

    Attributes:
      sums: of the metrics in :data:`SUMMED`, by name.
      diverged_at: the first round after which a parameter was not finite, or 0; int32 scalar.
    """

    sums: dict[str, Any]
    diverged_at: Any


def start(run: Run, key: PRNGKeyArray, given: Start | None = None) -> RunState:
    """The state before the first round.

    Args:
      run: what is computed.
      key: of the run.
      given: what the model starts from; None for what ``key`` draws.
    """
    params, model = started(run.model, stream(key, "init"), given)
    recalls = run.attack is not None and "last_update" in run.attack.needs
    of_method = run.algorithm.init(params, **_models(run, key, params, given))
    _check_metrics(run, of_method)
    uplink, received = None, ()
    if run.compression is not None:
        uplink = jax.eval_shape(functools.partial(_first_uplink, run), params, of_method)
    clients = _first_rows(run, params, model, uplink)
    if run.downlink_compression is not None:
        received = channel.first_received(run.downlink_compression, params)
    last_update = tree.zeros_like(params) if recalls else ()
    selection = run.selection.init(run.num_clients)
    memory = () if run.attack is None else run.attack.init(stream(key, "memory of the attack"), params)
    broadcasts = _first_broadcasts(run, params, of_method, model)
    kept = last_update, model, clients, received, selection, broadcasts, memory
    first = RunState(params, of_method, jnp.zeros((), jnp.int32), *kept)
    return placed(first, run.mesh, run.specs)


def _first_broadcasts(run: Run, params: Params, state: State, model: ModelState) -> Any:
    """Room for what the server sends; ``()`` where all clients of a cohort start in its round."""
    if run.selection.max_staleness is None:
        return ()
    downlink = jax.eval_shape(functools.partial(first_downlink, run.algorithm, run.cohort_size), params, state)
    like, number = Broadcast(downlink.start, downlink.shared, model.statistics), run.selection.max_staleness + 1
    return jax.tree.map(lambda x: jnp.zeros((number, *x.shape), x.dtype), like)


def _models(run: Run, key: PRNGKeyArray, params: Params, given: Start | None) -> dict[str, Params]:
    """The models of a method that trains several, by keyword: ``params`` and further ones, each drawn by itself."""
    number = run.algorithm.num_models
    if number is None:
        return {}
    if given is not None and number > 1:
        raise ValueError(
            f"algorithm={run.algorithm.name}: draws {number} models; must have no initial_params, and as model no nnx "
            "module, which has parameters, but the function that makes it"
        )
    others = [run.model.init(round_key(key, "init", index))[0] for index in range(1, number)]
    return {"models": jax.tree.map(lambda *each: jnp.stack(each), params, *others)}


def rounds(
    inputs: Inputs, state: RunState, totals: Totals, stop: Int[Array, ""], selected: Selected | None = None
) -> tuple[RunState, Metrics, Totals]:
    """Rounds up to ``stop``: the state, the metrics of the last of them, and the totals continued from ``totals``.

    With the cohort of a round that is ``selected`` already, it is the next one alone.
    """
    run = inputs.run

    def one(state: RunState, scratch: Any = None) -> tuple[RunState, Metrics, Any]:
        after, metrics, scratch = one_round(inputs, state, scratch, selected)
        # Per-client metrics have no fixed shape in the state: they leave through the history alone.
        reported = {name: x for name, x in metrics.items() if run.diagnostics or not jnp.ndim(x)}
        return tree.cast_like(after, state), reported, scratch

    one = jax.jit(one, inline=True)  # so that the program is the same; and traced once, for shapes and in the loop

    def turn(_: Any, carry: tuple[RunState, Metrics, Totals, Any]) -> tuple[RunState, Metrics, Totals, Any]:
        state, _, totals, scratch = carry
        state, metrics, scratch = one(state, scratch)
        grown = {name: old + metrics[name].astype(old.dtype) for name, old in totals.sums.items() if name in metrics}
        finite = (totals.diverged_at > 0) | tree.is_finite(state.params)
        totals = Totals(totals.sums | grown, jnp.where(finite, totals.diverged_at, state.round))
        return state, metrics, totals, scratch

    shapes = jax.eval_shape(one, state)[1:]
    metrics, scratch = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)
    with jax.named_scope(ROUNDS):
        state, metrics, totals, _ = jax.lax.fori_loop(state.round, stop, turn, (state, metrics, totals, scratch))
    return placed(state, run.mesh, run.specs), *_everywhere((metrics, totals), run)


def evaluation(
    run: Run,
    state: RunState,
    test: Batch,
    validation: Batch | None = None,
    own: OwnExamples | None = None,
) -> dict[str, jax.Array]:
    """Metrics of the parameters, and of the method's own output if it has one.

    Args:
      run: what is computed.
      state: the rows of clients are not read.
      test: on which the success of an attack is measured too.
      validation: the same; None where the data have no such split.
      own: from :func:`own_examples`; then also counts of correct predictions by class and by client, of the parameters
        only.
    """
    attack, output = run.attack, None
    if run.algorithm.output is not None:
        output = run.algorithm.output(state.params, state.algorithm)
    has_labels = run.model.num_classes > 0 and test.y.ndim == 1
    goal: Goal | None = attack.goal if attack and attack.is_targeted and has_labels else None
    if goal is not None and attack is not None and "memory" in attack.needs:
        goal = functools.partial(goal, memory=state.attack)
    of_test = evaluate_model(run, state.params, state.model, test, goal, by_class=own is not None and has_labels)
    own_names = _measured(run)
    metrics = {f"test_{name}" if name in own_names else name: value for name, value in of_test.items()}
    parts = [(_OUTPUT, output, test, goal)]
    if validation is not None:
        parts += [(_VALIDATION, state.params, validation, goal), (_OUTPUT_VALIDATION, output, validation, None)]
    for beginning, params, examples, goal in parts:
        if params is not None:
            measured = evaluate_model(run, params, state.model, examples, goal)
            metrics |= {beginning + name: value for name, value in measured.items()}
    if own is not None:
        metrics |= evaluate_clients(run, state, own)
    return _everywhere(metrics, run)


@jax.jit
def client(inputs: Inputs, state: RunState) -> LocalResult:
    """:data:`TIMED_STEPS` local steps of the federation's first client, without an attack."""
    run, federation, key = inputs
    run = dataclasses.replace(run, attack=None, local_steps=TIMED_STEPS, local_epochs=None, deadline=None)
    downlink, own = first_message(run.algorithm, run.cohort_size, state.params, state.algorithm)
    row, count = jax.tree.map(lambda x: x[0], (federation.rows, federation.counts))
    first = ClientInput(jnp.arange(run.cohort_size)[0], row, count, jnp.zeros((), bool), own)
    shared = RoundInput(federation, key, state.round, downlink, state.model)
    return client_pass(run, run.algorithm.client, shared, first)


@jax.jit
def evaluate_own(inputs: Inputs, state: RunState, client_ids: Int[Array, " clients"]) -> dict[str, jax.Array]:
    """Metrics of the own models of some clients; see :func:`evaluate_own_models`."""
    return _everywhere(evaluate_own_models(inputs, state, client_ids), inputs.run)


def has_own_models(inputs: Inputs) -> bool:
    """Whether clients' own models are evaluated."""
    return inputs.run.algorithm.own_model is not None and inputs.federation.held_out is not None


@jax.jit
def draw(inputs: Inputs, state: RunState) -> Selected:
    """The cohort of the next round, of a state without rows of clients."""
    run, shared = inputs.run, RoundInput.before(inputs, state)
    drawable, _ = who_can_be_drawn(run, shared, state)
    return _everywhere(choose_cohort(run, shared, state, drawable), run)


advance = jax.jit(rounds, donate_argnames="state")
evaluate = jax.jit(evaluation)


def init(run: Run, key: PRNGKeyArray, given: Start | None, one_row: bool = False) -> RunState:
    """:func:`start`, compiled; with ``one_row`` each client's row is left out but the first's, whose they all are."""
    return compiled_quickly(_init, 3, jax.default_backend())(run, key, given, one_row)


def _init(run: Run, key: PRNGKeyArray, given: Start | None, one_row: bool) -> RunState:
    state = start(run, key, given)
    return host_state.first_row(state) if one_row else state


@functools.cache
def compiled_quickly(function: Callable[..., Any], static: int | tuple[int, ...], platform: str) -> Any:
    """A function that is called once, whose careful compilation on a CPU takes longer than the call.

    The bits are the same, and draws are as fast as at the usual level 3.

    Args:
      function: a module's own.
      static: the arguments that are static.
      platform: of the devices.
    """
    options = {"xla_backend_optimization_level": 1} if platform == "cpu" else None
    return jax.jit(function, static_argnums=static, compiler_options=options)


def _first_rows(run: Run, params: Params, model: ModelState, uplink: Any) -> ClientRows:
    """What every client has kept before the first round: where a local pass would begin afresh.

    Args:
      run: says whether the state of an optimizer is kept, statistics are local and messages compressed.
      params: the initial parameters.
      model: its state at the start.
      uplink: shapes of a client's message, where messages are compressed.
    """
    rows, client = NOTHING_KEPT, run.algorithm.client
    repeated = functools.partial(per_client.repeat, num_clients=run.num_clients)
    own = client.own(params, run.model.personal_layers(params, model))
    w = client_params(params, own)
    if w is not params:
        rows = rows._replace(own=repeated(own))
    if client.keeps_carry:
        rows = rows._replace(carry=repeated(client.begin(Downlink(params))))
    if run.keeps_optimizer and run.local_optimizer is not None:
        rows = rows._replace(optimizer=repeated(value_of(run.local_optimizer).init(w)))
    if run.statistics == "local" and jax.tree.leaves(model.statistics):
        rows = rows._replace(statistics=repeated(model.statistics))
    if run.compression is not None:
        memory = channel.uplink_memory(run.compression, uplink)
        if jax.tree.leaves(memory):
            rows = rows._replace(compression=repeated(memory))
    return rows


def _everywhere(values: Any, run: Run) -> Any:
    """``values`` with a copy on every device that shares the clients."""
    return values if run.mesh is None else jax.lax.with_sharding_constraint(values, everywhere(run.mesh))


def _measured(run: Run) -> set[str]:
    """Names of what is measured of the model's predictions."""
    return {"loss", *(metric.name for metric in run.model.metrics)}


def _check_metrics(run: Run, of_method: State) -> None:
    """Refuses a state without metrics, and metrics that would take the place of others in the history."""
    metrics = getattr(of_method, "metrics", None)
    if not isinstance(metrics, dict):
        kind = f"{type(of_method).__name__} without metrics"
        if metrics is not None:
            kind = f"{type(of_method).__name__} whose metrics are a {type(metrics).__name__}"
        allowed = "a named tuple with a field metrics, a dict of arrays, {} for none"
        raise ValueError(f"init of the rule: returns a {kind}; must return {allowed}")
    beginnings = (_OUTPUT, _VALIDATION, _OUTPUT_VALIDATION)
    taken = _TAKEN | {beginning + name for beginning in beginnings for name in _measured(run)}
    for name in metrics:
        if not isinstance(name, str) or name in taken:
            raise ValueError(f"init of the rule: metrics have the name {name!r}; must be a text that no column has")


def no_totals(run: Run) -> Totals:
    """The totals of no rounds, of that alone which such a run may have."""
    sums = {name: np.zeros((), kind) for name, kind in SUMMED.items() if name not in _OF_SOME or _OF_SOME[name](run)}
    return Totals(sums, np.zeros((), np.int32))


def own_examples(federation: Federation, state: RunState) -> OwnExamples | None:
    """What :func:`evaluation` reads of every client; None unless clients are evaluated."""
    if federation.evaluated is None:
        return None
    return *federation.evaluated, per_client.rows_or(state.clients.statistics, lambda: None)


def first_downlink(algorithm: Algorithm, cohort_size: int, params: Params, state: State) -> Downlink:
    """The downlink of a cohort of the first clients."""
    ids = jnp.arange(cohort_size)
    return algorithm.broadcast(params, per_client.gather(state, ids), ids)


def first_message(algorithm: Algorithm, cohort_size: int, params: Params, state: State) -> tuple[Downlink, Any]:
    """What the first clients receive, ``own`` being ``()``, and the own part of the very first."""
    downlink = first_downlink(algorithm, cohort_size, params, state)
    return downlink._replace(own=()), jax.tree.map(lambda x: x[0], downlink.own)


def _first_uplink(run: Run, params: Params, state: State) -> Uplink:
    """A message of the first client that takes no step, of which only shapes count."""
    downlink, own = first_message(run.algorithm, run.cohort_size, params, state)
    rule = run.algorithm.client
    downlink = rule.receive(downlink._replace(own=own), lambda _: jnp.zeros(()))
    return Uplink(params, rule.report(downlink, params, rule.begin(downlink), jnp.zeros(())))
