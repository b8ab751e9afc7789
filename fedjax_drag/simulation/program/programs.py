"""A run as pure functions: rounds, evaluation, and one client's work by itself."""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from fedjax_drag import per_client, tree
from fedjax_drag.compression import _channel as channel
from fedjax_drag.simulation.every_client.evaluation import make_evaluate_clients
from fedjax_drag.simulation.every_client.split import HeldOut
from fedjax_drag.simulation.model.start import Start, started
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.client_pass import ClientPass, first_rows, make_client_pass
from fedjax_drag.simulation.program.evaluation import make_evaluate
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.round import Round, make_round
from fedjax_drag.simulation.program.work import ClientInput, LocalResult, RoundInput, RunState, Work
from fedjax_drag.types import Algorithm, Attack, Batch, Downlink, Params, State, Uplink

OwnExamples = tuple[Batch | None, HeldOut, Any]
"""Training examples, the held-out ones among them, and the statistics ``[M, ...]`` of clients that keep their own."""

Metrics = dict[str, jax.Array]
"""Metrics of a round by name: scalars, or ``[S]``, an entry for each client."""


class Kind(enum.Enum):
    """What a row of the history has of a metric that is accumulated over rounds."""

    SUM = "sum over the rounds since the row before"
    MEAN = "mean over the rounds since the row before that were not silent"


class Accumulated(NamedTuple):
    """A scalar metric that is accumulated over rounds."""

    kind: Kind
    dtype: Any


ACCUMULATED: Mapping[str, Accumulated] = {
    "train_loss": Accumulated(Kind.MEAN, np.float32),
    "num_rejected": Accumulated(Kind.SUM, np.int32),
    "participants": Accumulated(Kind.SUM, np.int32),
    "drawn": Accumulated(Kind.SUM, np.int32),
    "silent_rounds": Accumulated(Kind.SUM, np.int32),
    "local_steps": Accumulated(Kind.SUM, np.int32),
    "slowest_steps": Accumulated(Kind.SUM, np.int32),
}
"""The metrics that are accumulated, where a round has them; a row has all others from the evaluated round."""

OF_ABSENCE = ("drawn", "silent_rounds")
"""Those of them that only runs have whose clients may be absent."""

TEST_NAMES = {
    "accuracy": "test_accuracy",
    "loss": "test_loss",
    "attack_success_rate": "attack_success_rate",
    "class_correct": "class_correct",
    "class_examples": "class_examples",
}
"""Names in the history of what is evaluated: of the parameters."""

OUTPUT_NAMES = {
    "accuracy": "output_accuracy",
    "loss": "output_loss",
    "attack_success_rate": "output_attack_success_rate",
}
"""The same of the algorithm's output, where that is another model."""

VALIDATION_NAMES = {"accuracy": "validation_accuracy", "loss": "validation_loss"}
"""Names of the same on the validation examples: of the parameters."""

OUTPUT_VALIDATION_NAMES = {"accuracy": "output_validation_accuracy", "loss": "output_validation_loss"}
"""And of the algorithm's output."""

_TAKEN = frozenset({"round", "epsilon", "client_seconds", *OF_ABSENCE})
_TAKEN |= {*OUTPUT_NAMES.values(), *VALIDATION_NAMES.values(), *OUTPUT_VALIDATION_NAMES.values()}
"""Columns of the history that a metric of a rule would replace, or stand for where a run has none of its own."""

ROUNDS = "rounds"
"""In a compiled program, the name of the loop over rounds."""

TIMED_STEPS = 10
"""Local steps of :attr:`Programs.client`."""


class Totals(NamedTuple):
    """What is accumulated over rounds.

    Attributes:
      sums: of :data:`ACCUMULATED` metrics, by name.
      diverged_at: the first round after which a parameter was not finite, or 0; int32 scalar.
    """

    sums: dict[str, Any]
    diverged_at: Any


class Programs(NamedTuple):
    """The run as pure functions.

    Attributes:
      init: ``(key, given) -> state``: from the start ``given``, or from what ``key`` draws if that is None.
      advance: ``(federation, key, state, totals, stop) -> (state, metrics, totals)``: rounds up to ``stop``; the
        metrics of the last of them, and the :class:`Totals` continued from ``totals``.
      evaluate: ``(state, test, validation, own) -> metrics``: of the parameters, and of the algorithm's own output if
        it has one; ``validation`` is None where the data have no such split. With ``own`` from :func:`own_examples`,
        also counts of correct predictions by class and by client, of the parameters only.
      client: ``(federation, key, state) -> local result``: :data:`TIMED_STEPS` local steps of one client.
      totals: those of no rounds, from which ``advance`` starts.
    """

    init: Callable[..., RunState]
    advance: Callable[..., tuple[RunState, Metrics, Totals]]
    evaluate: Callable[..., dict[str, jax.Array]]
    client: Callable[[Federation, PRNGKeyArray, RunState], LocalResult]
    totals: Totals


def make_programs(algorithm: Algorithm, attack: Attack | None, work: Work, diagnostics: bool = True) -> Programs:
    """Builds the pure functions of a run.

    Args:
      algorithm: the method.
      attack: what malicious clients do, or None.
      work: what the clients do.
      diagnostics: whether to report per-client metrics; what is not reported is not computed.
    """

    def init(key: PRNGKeyArray, given: Start | None = None) -> RunState:
        params, model = started(work.model, sampling.stream(key, "init"), given)
        recalls = attack is not None and "last_update" in attack.needs
        last_update = tree.zeros_like(params) if recalls else ()
        of_method = algorithm.init(params)
        _check_metrics(of_method)
        uplink, received = None, ()
        if work.compression is not None:
            uplink = jax.eval_shape(functools.partial(_first_uplink, algorithm, work), params, of_method)
        clients = first_rows(algorithm.client, work, params, model.statistics, uplink)
        if work.downlink_compression is not None:
            received = channel.first_received(work.downlink_compression, params)
        return RunState(params, of_method, jnp.zeros((), jnp.int32), last_update, model, clients, received)

    training = dataclasses.replace(work.training, local_steps=TIMED_STEPS, local_epochs=None, deadline=None)
    timed_pass = make_client_pass(None, dataclasses.replace(work, training=training))
    return Programs(
        init,
        make_advance(make_round(algorithm, attack, work), diagnostics),
        _make_evaluate_state(algorithm, attack, work),
        functools.partial(_first_client, algorithm, work, timed_pass),
        no_totals(work.may_be_absent),
    )


def _check_metrics(of_method: State) -> None:
    """Refuses a state without metrics, and metrics that would take the place of others in the history."""
    metrics = getattr(of_method, "metrics", None)
    if not isinstance(metrics, dict):
        kind = f"{type(of_method).__name__} without metrics"
        if metrics is not None:
            kind = f"{type(of_method).__name__} whose metrics are a {type(metrics).__name__}"
        allowed = "a named tuple with a field metrics, a dict of arrays, {} for none"
        raise ValueError(f"init of the rule: returns a {kind}; must return {allowed}")
    for name in metrics:
        if not isinstance(name, str) or name in _TAKEN:
            raise ValueError(f"init of the rule: metrics have the name {name!r}; must be a text that no column has")


def make_advance(one_round: Round, diagnostics: bool) -> Callable[..., tuple[RunState, Metrics, Totals]]:
    """Builds :attr:`Programs.advance`, the loop over rounds.

    Args:
      one_round: the pure function that is repeated.
      diagnostics: whether to report per-client metrics.
    """

    def reported_round(
        federation: Federation, key: PRNGKeyArray, state: RunState, scratch: Any = None
    ) -> tuple[RunState, Metrics, Any]:
        after, metrics, scratch = one_round(federation, key, state, scratch)
        # Per-client metrics have no fixed shape in the state: they leave through the history alone.
        after = tree.settle(after, state)
        return after, {name: x for name, x in metrics.items() if diagnostics or not _is_per_client(x)}, scratch

    def advance(
        federation: Federation, key: PRNGKeyArray, state: RunState, totals: Totals, stop: Int[Array, ""]
    ) -> tuple[RunState, Metrics, Totals]:
        # Inlined, so that the program is the same; and traced once, for its shapes as well as in the loop.
        run_round = jax.jit(functools.partial(reported_round, federation, key), inline=True)
        return _loop_over_rounds(run_round, state, totals, stop)

    return advance


def _loop_over_rounds(
    run_round: Callable[..., tuple[RunState, Metrics, Any]], state: RunState, totals: Totals, stop: Int[Array, ""]
) -> tuple[RunState, Metrics, Totals]:
    """Calls ``(state, scratch) -> (state, metrics, scratch)`` up to round ``stop``; one loop, compiled once."""

    def turn(_: Any, carry: tuple[RunState, Metrics, Totals, Any]) -> tuple[RunState, Metrics, Totals, Any]:
        state, _, totals, scratch = carry
        state, metrics, scratch = run_round(state, scratch)
        return state, metrics, _accumulated(totals, metrics, state), scratch

    metrics, scratch = jax.tree.map(_blank, jax.eval_shape(run_round, state)[1:])
    with jax.named_scope(ROUNDS):
        return jax.lax.fori_loop(state.round, stop, turn, (state, metrics, totals, scratch))[:3]


def no_totals(may_be_absent: bool = False) -> Totals:
    """The totals of no rounds; :data:`OF_ABSENCE` are among them only where clients may be absent."""
    names = [name for name in ACCUMULATED if name not in OF_ABSENCE or may_be_absent]
    sums = {name: np.zeros((), ACCUMULATED[name].dtype) for name in names}
    return Totals(sums, np.zeros((), np.int32))


def _accumulated(totals: Totals, metrics: Metrics, after: RunState) -> Totals:
    """The totals with a round's metrics added, given the state after it."""
    grown = {name: old + metrics[name].astype(old.dtype) for name, old in totals.sums.items() if name in metrics}
    finite = (totals.diverged_at > 0) | tree.is_finite(after.params)
    return Totals(totals.sums | grown, jnp.where(finite, totals.diverged_at, after.round))


def _make_evaluate_state(
    algorithm: Algorithm, attack: Attack | None, work: Work
) -> Callable[..., dict[str, jax.Array]]:
    """Builds :attr:`Programs.evaluate`; the success of an attack is measured on the test examples alone."""
    goal, mesh = attack.goal if attack and attack.is_targeted else None, work.execution.mesh
    measure, measure_classes = (make_evaluate(work.model, goal, mesh, by_class) for by_class in (False, True))
    measure_validation, measure_clients = make_evaluate(work.model, None, mesh), make_evaluate_clients(work.model, mesh)

    def evaluate(
        state: RunState, test: Batch, validation: Batch | None = None, own: OwnExamples | None = None
    ) -> dict[str, jax.Array]:
        parts = [(measure if own is None else measure_classes, measure, test, TEST_NAMES, OUTPUT_NAMES)]
        if validation is not None:
            names = VALIDATION_NAMES, OUTPUT_VALIDATION_NAMES
            parts.append((measure_validation, measure_validation, validation, *names))
        metrics = {}
        for of_params, of_output, examples, names, output_names in parts:
            metrics |= {names[name]: value for name, value in of_params(state.params, state.model, examples).items()}
            if algorithm.output is not None:
                output = of_output(algorithm.output(state.params, state.algorithm), state.model, examples)
                metrics |= {output_names[name]: value for name, value in output.items()}
        if own is not None:
            metrics |= measure_clients(state.params, state.model, *own)
        return metrics

    return evaluate


def own_examples(federation: Federation, state: RunState) -> OwnExamples | None:
    """What :attr:`Programs.evaluate` reads of every client; None unless clients are evaluated."""
    if federation.evaluated is None:
        return None
    kept = state.clients.statistics
    return *federation.evaluated, kept.rows if per_client.is_per_client(kept) else None


def _first_client(
    algorithm: Algorithm,
    work: Work,
    timed_pass: ClientPass,
    federation: Federation,
    key: PRNGKeyArray,
    state: RunState,
) -> LocalResult:
    """:attr:`Programs.client`: the work of the federation's first client, without an attack."""
    downlink, own = first_message(algorithm, work, state.params, state.algorithm)
    row, count = jax.tree.map(lambda x: x[0], (federation.rows, federation.counts))
    client = ClientInput(jnp.arange(work.cohort_size)[0], row, count, jnp.zeros((), bool), own)
    return timed_pass(algorithm.client, RoundInput(federation, key, state.round, downlink, state.model), client)


def first_downlink(algorithm: Algorithm, cohort_size: int, params: Params, state: State) -> Downlink:
    """The downlink of a cohort of the first clients."""
    ids = jnp.arange(cohort_size)
    return algorithm.broadcast(params, per_client.gather(state, ids), ids)


def first_message(algorithm: Algorithm, work: Work, params: Params, state: State) -> tuple[Downlink, Any]:
    """What the first clients receive, ``own`` being ``()``, and the own part of the very first."""
    downlink = first_downlink(algorithm, work.cohort_size, params, state)
    return downlink._replace(own=()), jax.tree.map(lambda x: x[0], downlink.own)


def _first_uplink(algorithm: Algorithm, work: Work, params: Params, state: State) -> Uplink:
    """A message of the first client that takes no step, of which only shapes count."""
    downlink, own = first_message(algorithm, work, params, state)
    downlink = downlink._replace(own=own)
    client = algorithm.client
    return Uplink(params, client.report(downlink, params, client.begin(downlink), jnp.zeros(())))


def _is_per_client(metric: jax.Array) -> bool:
    """Whether a metric has an entry for each client."""
    return bool(jnp.ndim(metric))


def _blank(like: Any) -> jax.Array:
    return jnp.zeros(like.shape, like.dtype)
