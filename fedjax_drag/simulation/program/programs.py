"""A run as pure functions: rounds, evaluation, and one client's work by itself."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import per_client, tree
from fedjax_drag.data.batching import gather
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.client_cost import ClientCost, client_cost
from fedjax_drag.simulation.program.evaluation import make_evaluate
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.local import LocalResult
from fedjax_drag.simulation.program.round import FULL, RunState, Work, make_client_pass, make_round
from fedjax_drag.types import Algorithm, Attack, Params

SUMMED = {"train_loss": np.float32} | dict.fromkeys(
    ("num_rejected", "participants", "local_steps", "slowest_steps"), np.int32
)
"""Metrics, where a round has them, that a row of the history has from all rounds since the row before."""


TIMED_STEPS = 10
"""Local steps of :attr:`Programs.client`."""


class Programs(NamedTuple):
    """The run as pure functions.

    Attributes:
      init: ``(key) -> state``.
      advance: ``(federation, key, state, totals, stop) -> (state, metrics, totals)``: rounds up to ``stop``; the
        metrics of the last of them, and the sums of :data:`SUMMED` ones continued from ``totals``, which also has
        ``diverged_at``: the first round after which a parameter is not finite, or 0.
      evaluate: ``(state, test) -> metrics``: of the parameters, and of the algorithm's own output if it has one.
      client: ``(federation, key, state) -> local result``: :data:`TIMED_STEPS` local steps of one client.
    """

    init: Callable[[jax.Array], RunState]
    advance: Callable[..., tuple[RunState, dict[str, jax.Array]]]
    evaluate: Callable[..., dict[str, jax.Array]]
    client: Callable[..., LocalResult]


def make_programs(
    algorithm: Algorithm,
    attack: Attack | None,
    work: Work,
    init_params: Callable[[jax.Array], Any],
    diagnostics: bool = True,
) -> Programs:
    """Builds the pure functions of a run.

    Args:
      algorithm: the method.
      attack: what malicious clients do, or None.
      work: what the clients do.
      init_params: ``(key) -> params``.
      diagnostics: whether to report per-client metrics; what nobody reads is not computed.
    """
    round_fn = make_round(algorithm, attack, work)

    def init(key):
        params = init_params(sampling.stream(key, "init"))
        recalls = attack is not None and "last_update" in attack.needs
        last_update = tree.zeros_like(params) if recalls else ()
        return RunState(params, algorithm.init(params), jnp.zeros((), jnp.int32), last_update)

    def advance(federation, key, state, totals, stop):
        def reported_round(state, scratch=None):
            after, metrics, scratch = round_fn(federation, key, state, scratch)
            # Per-client metrics have no fixed shape in the state: they leave through the history alone.
            after = tree.settle(after, state)
            return after, {name: x for name, x in metrics.items() if diagnostics or not jnp.ndim(x)}, scratch

        def one_round(_, carry):
            state, _, totals, scratch = carry
            state, metrics, scratch = reported_round(state, scratch)
            grown = {
                name: totals[name] + metrics[name].astype(totals[name].dtype) for name in totals if name in metrics
            }
            grown["diverged_at"] = jnp.where(
                (totals["diverged_at"] > 0) | _finite(state.params), totals["diverged_at"], state.round
            )
            return state, metrics, totals | grown, scratch

        metrics, scratch = jax.tree.map(_blank, jax.eval_shape(reported_round, state)[1:])
        return jax.lax.fori_loop(state.round, stop, one_round, (state, metrics, totals, scratch))[:3]

    goal = attack.goal if attack else None
    measure = make_evaluate(work.apply, work.loss, work.preprocess, work.num_classes, goal, work.mesh)

    def evaluate(state, test):
        metrics = measure(state.params, test)
        if algorithm.output is None:
            return metrics
        handed_out = measure(algorithm.output(state.params, state.algorithm), test)
        return metrics | {f"output_{name.removeprefix('test_')}": value for name, value in handed_out.items()}

    client_pass = make_client_pass(None, dataclasses.replace(work, local_steps=TIMED_STEPS, local_epochs=None))

    def client(federation, key, state):
        ids = jnp.arange(work.cohort_size)
        downlink = algorithm.broadcast(state.params, per_client.gather(state.algorithm, ids), ids)
        own, row, count = jax.tree.map(lambda x: x[0], (downlink.own, federation.rows, federation.counts))
        shared = federation, key, state.round, downlink._replace(own=())
        return client_pass(algorithm.client, shared, (ids[0], row, count, jnp.zeros((), bool), own))

    return Programs(init, advance, evaluate, client)


def no_totals() -> dict[str, np.ndarray]:
    """The sums of no rounds."""
    return {name: np.zeros((), dtype) for name, dtype in (SUMMED | {"diverged_at": np.int32}).items()}


def _finite(params: Params) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()


def _blank(like: Any) -> jax.Array:
    return jnp.zeros(like.shape, like.dtype)


def cost_of(
    algorithm: Algorithm, work: Work, programs: Programs, federation: Federation, key: jax.Array, state: RunState
) -> ClientCost:
    """What the algorithm asks of one client; from shapes alone."""

    def messages(federation, key, state):
        ids = jnp.arange(work.cohort_size)
        downlink = algorithm.broadcast(state.params, per_client.gather(state.algorithm, ids), ids)
        size = federation.rows.shape[1] if work.batch_size == FULL else work.batch_size
        batch = gather(federation.train, federation.rows[0], jnp.zeros(size, jnp.int32), work.preprocess)
        own = jax.tree.map(lambda x: x[0], downlink.own)
        return downlink._replace(own=own), batch, programs.client(federation, key, state).uplink

    return client_cost(algorithm.client, *jax.eval_shape(messages, federation, key, state))
