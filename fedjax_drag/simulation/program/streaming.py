"""The server side one chunk of clients after another, of which only sums and a few numbers per client are kept."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedjax_drag import per_client, tree
from fedjax_drag.per_client import without_rows
from fedjax_drag.simulation.program.client_pass import sent_pass
from fedjax_drag.simulation.program.clients_axis import make_accumulator
from fedjax_drag.simulation.program.metrics import sum_of_benign
from fedjax_drag.simulation.run import ClientInput, Cohort, LocalResult, RoundInput, RoundOutcome, Run, RunState
from fedjax_drag.types import PER_CLIENT_EXTRAS, Params, State, Sums


class StreamInput(NamedTuple):
    """What is the same for all clients of a pass over the cohort.

    Attributes:
      round: for the local passes.
      params: global parameters.
      state: state of the algorithm without rows of clients.
      extras: those without an entry for each client.
      first_pass: whether the sums of this pass prepare the state, bool scalar.
    """

    round: RoundInput
    params: Params
    state: State
    extras: dict[str, Any]
    first_pass: Bool[Array, ""]


class StreamedClient(NamedTuple):
    """What a client brings; every leaf has a leading axis ``[S]``, or that of a chunk.

    Attributes:
      client: for its local pass.
      rows: its rows of the algorithm's state, None in the place of everything else.
      extras: those with an entry for each client.
    """

    client: ClientInput
    rows: Any
    extras: dict[str, Any]


class StreamTotals(NamedTuple):
    """Sums over clients.

    Attributes:
      algorithm: those that the algorithm finishes its round from.
      benign: of the benign clients' deltas; ``()`` without an attack.
    """

    algorithm: Any
    benign: Params


class StreamedRows(NamedTuple):
    """What is kept of each client, leading axis ``[S]``.

    Attributes:
      algorithm: what the algorithm keeps.
      local: its result without the message.
      accepted: whether its message is usable, bool.
    """

    algorithm: Any
    local: LocalResult
    accepted: jax.Array


class CohortPass(NamedTuple):
    """What is left of one pass over the cohort."""

    totals: StreamTotals
    kept: StreamedRows


def stream(run: Run, state: RunState, cohort: Cohort) -> RoundOutcome:
    """Local passes and aggregation of a round, the messages added up as they come.

    Args:
      run: whose method has sums, and whose attack forges no messages.
      state: before the round.
      cohort: of the round.
    """
    sums = run.algorithm.streamed
    assert sums is not None
    rows, extras = _rows_only(cohort.state), {**cohort.extras, **run.constants}
    per_entry = {name: value for name, value in cohort.extras.items() if name in PER_CLIENT_EXTRAS}
    of_all = {name: value for name, value in cohort.extras.items() if name not in PER_CLIENT_EXTRAS}
    shared = StreamInput(cohort.shared, state.params, without_rows(cohort.state), of_all, jnp.zeros((), bool))
    run_client, accumulate = functools.partial(_run_client, run), functools.partial(_accumulate, run, sums)
    entries = StreamedClient(cohort.clients, rows, per_entry)
    over_entries = functools.partial(make_accumulator(run.batching, run.mesh), run_client, accumulate, inputs=entries)
    ready, (totals, kept) = _pass_once_or_twice(sums, over_entries, shared, extras)
    finished = sums.finish(state.params, totals.algorithm, _with_rows(ready, rows), kept.algorithm, **extras)
    return RoundOutcome(*finished, kept.local, kept.accepted, totals.benign)


def _run_client(run: Run, shared: StreamInput, entry: StreamedClient) -> LocalResult:
    return sent_pass(run, shared.round, entry.client)


def _accumulate(
    run: Run, sums: Sums, shared: StreamInput, chunk: StreamedClient, results: LocalResult
) -> tuple[StreamTotals, StreamedRows]:
    """What a chunk of clients adds to the sums, and what is kept of each of them."""
    extras = {**shared.extras, **chunk.extras, **run.constants}
    if sums.needs_first_pass is not None:
        extras["first_pass"] = shared.first_pass
    state = _with_rows(shared.state, chunk.rows)
    total, kept = sums.accumulate(shared.params, results.uplink, state, **extras)
    benign = ()
    if run.attack is not None:
        benign = sum_of_benign(results.uplink.delta, chunk.client.malicious, chunk.extras.get("valid"))
    accepted = tree.usable_rows(results.uplink) | (not run.reject_nonfinite)
    return StreamTotals(total, benign), StreamedRows(kept, results._replace(uplink=()), accepted)


def _pass_once_or_twice(
    sums: Sums,
    over_entries: Callable[[StreamInput], tuple[StreamTotals, StreamedRows]],
    shared: StreamInput,
    extras: dict[str, Any],
) -> tuple[State, CohortPass]:
    """Passes over the cohort, twice where the state is not ready for ``accumulate`` before a first pass.

    Args:
      sums: of the algorithm.
      over_entries: ``(shared) -> (totals, kept)``, a pass over the cohort.
      shared: of a pass that is not a first one.
      extras: of ``prepare``.

    Returns:
      The state that is ready, and what is left of the pass with it.
    """
    if sums.needs_first_pass is None:
        return shared.state, CohortPass(*over_entries(shared))
    twice = sums.needs_first_pass(shared.state)
    absorb = functools.partial(_absorb, sums, extras)
    over_entries = jax.jit(over_entries, inline=True)  # traced once, for its shapes as well as in the loop

    def turn(index: jax.Array, carry: tuple[State, CohortPass]) -> tuple[State, CohortPass]:
        state, _ = carry
        first_pass = twice & (index == 0)
        result = CohortPass(*over_entries(shared._replace(state=state, first_pass=first_pass)))
        return jax.lax.cond(first_pass, lambda: absorb(state, result), lambda: state), result

    # One loop of one or two turns, so that the local pass is compiled once.
    shapes = CohortPass(*jax.eval_shape(over_entries, shared))
    blank = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)
    return jax.lax.fori_loop(0, 1 + twice.astype(jnp.int32), turn, (shared.state, blank))


def _absorb(sums: Sums, extras: dict[str, Any], state: State, result: CohortPass) -> State:
    """The state that a first pass has made ready."""
    assert sums.prepare is not None
    return sums.prepare(result.totals.algorithm, state, result.kept.algorithm, **extras)


def _with_rows(state: State, rows: Any) -> State:
    """A state from :func:`~fedjax_drag.per_client.without_rows` with the rows of :func:`_rows_only` in their places."""
    return per_client.convert(lambda _, mine: mine, state, rows)


def _rows_only(state: State) -> Any:
    """The rows that a state keeps for every client, and None in the place of everything else."""
    keep = lambda node: node if per_client.is_per_client(node) else None
    return jax.tree.map(keep, state, is_leaf=per_client.is_per_client)
