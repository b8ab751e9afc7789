"""The server's side of a round: local passes, attack and aggregation, on a stack of messages or on sums of them.

:func:`stack` keeps the messages of the whole cohort ``[S, *p]``, :func:`stream` goes through chunks of clients and
keeps sums and a few numbers per client.

Statistics that a model keeps beside its parameters, such as BatchNorm's running means, are no part of the deltas, and
no rule sees them. Every client starts its local pass from the server's, and the server makes new ones of the clients':

- ``"average"``: the mean over the clients that took part, each counting as much as the others;
- ``"weighted"``: the same, weighted by numbers of examples;
- ``"median"``: the coordinatewise median over them, which a minority of malicious clients cannot move beyond the values
  of benign ones;
- ``"local"``: every client goes on with its own, as FedBN does with all of BatchNorm; the mean over those that took
  part is the server's for evaluation on the test set, and no client receives it;
- ``"frozen"``: no client changes them: BatchNorm normalises by the running statistics in training as in evaluation.

The statistics of a client count if all of them are finite. Where an attack forges messages, malicious clients forge
their statistics by the same attack: it is given the change of each client's statistics in the place of the deltas. An
attack that needs more than messages, such as the server's root update, is given no statistics, and those of its clients
are honest.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_drag import per_client, tree
from fedjax_drag.compression import _channel as channel
from fedjax_drag.per_client import without_rows
from fedjax_drag.simulation.devices.host_state import completed
from fedjax_drag.simulation.devices.placement import split_coordinates
from fedjax_drag.simulation.model.model import Statistics
from fedjax_drag.simulation.program.clients_axis import map_clients, sum_clients
from fedjax_drag.simulation.program.dissimilarity import dissimilarity, requested
from fedjax_drag.simulation.program.evaluation import sum_of_benign
from fedjax_drag.simulation.program.local import sent_pass
from fedjax_drag.simulation.run import ClientInput, Cohort, LocalResult, RoundInput, RoundOutcome, Run
from fedjax_drag.types import PER_CLIENT_EXTRAS, POISON_NEEDS, Attack, Deltas, Exchange, Params, State, Sums, Uplink


def stack(run: Run, cohort: Cohort, scratch: LocalResult | None) -> tuple[RoundOutcome, LocalResult]:
    """Local passes, attack and aggregation of a round.

    Args:
      run: what is computed.
      cohort: of the round.
      scratch: the clients' results of the round before, whose buffers are used again; None in the first round.

    Returns:
      The outcome, and the scratch for the next round.
    """
    one = functools.partial(sent_pass, run)
    local = map_clients(run.batching, run.mesh, one, cohort.shared, cohort.clients, scratch)
    uplink, benign_sum = local.uplink, ()
    if "exchange" in run.algorithm.needs:
        cohort = cohort._replace(extras=cohort.extras | {"exchange": _exchange(run, cohort, uplink)})
    uplink = forged(run, cohort, uplink)
    if run.attack is not None:  # of what is sent, as the server measures these messages too: one pass for both
        benign_sum = sum_of_benign(uplink.delta, cohort.clients.malicious, cohort.who.valid)
    accepted = tree.usable_rows(uplink) | (not run.reject_nonfinite)
    return RoundOutcome(*aggregate(run, cohort, uplink), local, accepted, benign_sum), local


def _exchange(run: Run, cohort: Cohort, honest: Uplink) -> Exchange:
    """The extra ``exchange`` of a cohort that would honestly send these messages."""
    attack = run.attack
    if attack is None or not attack.forges_for_each:
        return Exchange(honest.delta)
    attackers = attack.attackers(cohort.clients.malicious, cohort.shared.round)

    def forge(own: Params, others: Deltas, weight: jax.Array, index: Int[Array, " degree"]) -> Deltas:
        return attack.forge_for(own, others, weight, attackers[index])

    return Exchange(honest.delta, forge)


def aggregate(
    run: Run, cohort: Cohort, uplink: Uplink, of_benign: jax.Array | None = None, **changes: Any
) -> tuple[Params, State]:
    """The method's server side on the messages ``uplink``.

    Args:
      run: what is computed.
      cohort: of the round.
      uplink: of the cohort.
      of_benign: ``dissimilarity`` of the benign clients where it is known; None to compute that of all.
      **changes: in the place of extras of the cohort.
    """
    extras = {**cohort.extras, **run.constants, **changes}
    if requested(run.algorithm.needs) is not None:  # of what is uploaded, and before devices exchange it
        extras |= {"dissimilarity": _dissimilarity(run, cohort, uplink, of_benign)}
    if run.algorithm.split == "coordinates":
        uplink = split_coordinates(uplink, run.mesh, run.specs)
    return run.algorithm.aggregate(cohort.params, uplink, cohort.state, **extras)


def _dissimilarity(run: Run, cohort: Cohort, uplink: Uplink, of_benign: jax.Array | None = None) -> jax.Array:
    """The extra ``dissimilarity`` ``[S]`` of a cohort's messages; of benign clients ``of_benign`` if that is given."""
    kind, clients = requested(run.algorithm.needs), cohort.clients
    assert kind is not None
    if of_benign is not None:  # then only malicious clients' models predict
        clients = clients._replace(num_examples=jnp.where(clients.malicious, clients.num_examples, 0))
    found = dissimilarity(run, kind, cohort.shared, clients, uplink.delta)
    return found if of_benign is None else jnp.where(clients.malicious, found, of_benign)


def forged(run: Run, cohort: Cohort, uplink: Uplink) -> Uplink:
    """The messages after the attack, those of attackers as the server decompresses them if they must be compressed."""
    attack, clients, shared = run.attack, cohort.clients, cohort.shared
    if attack is None or not attack.forges:
        return uplink
    attackers = attack.attackers(clients.malicious, shared.round)
    knowledge = {
        "last_update": shared.last_update,
        "memory": shared.memory,
        "root_delta": cohort.extras.get("root_delta"),
        "aggregate": _preview(run, cohort, uplink),
    }
    messages = attack.forge(
        shared.key_of("attack"),
        uplink,
        attackers,
        client_ids=clients.client_id,
        round=shared.round,
        **{name: knowledge[name] for name in attack.needs if name not in POISON_NEEDS},
        **_absence(cohort),
    )
    if run.compression is None or not run.compresses_forged:
        return messages
    key_of = functools.partial(shared.key_of, "forged compression")
    send_once = functools.partial(channel.send_once, run.compression)
    sent = jax.vmap(send_once)(messages, jax.vmap(key_of)(clients.client_id))
    return jax.tree.map(lambda new, old: jnp.where(tree.expand(attackers, old), new, old), sent, messages)


def _absence(cohort: Cohort) -> dict[str, Any]:
    """What an attack is told of clients whose messages do not count: nothing where none can be missing or excluded."""
    return {} if cohort.who.valid is None else {"valid": cohort.who.valid}


def _preview(run: Run, cohort: Cohort, honest: Uplink) -> Callable[[Uplink], Params] | None:
    """The change of the parameters as an attacker computes it, who does not know the server's random draw."""
    assert run.attack is not None
    if "aggregate" not in run.attack.needs:
        return None
    measures = requested(run.algorithm.needs) is not None
    of_benign = _dissimilarity(run, cohort, honest) if measures else None  # once, however often the attack tries
    key = cohort.shared.key_of("attack on server")

    def preview(uplink: Uplink) -> Params:
        return tree.subtract(aggregate(run, cohort, uplink, of_benign, key=key)[0], cohort.params)

    return preview


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


CohortPass = tuple[tuple[Any, Params], tuple[Any, LocalResult, jax.Array]]
"""What is left of one pass over the cohort: ``(totals, kept)``.

The totals are the sums over clients that the algorithm finishes its round from, and that of the benign clients' deltas,
``()`` without an attack. Kept is of each client, with a leading axis ``[S]``, what the algorithm keeps, its result
without the message, and whether the message is usable.
"""


def stream(run: Run, cohort: Cohort) -> RoundOutcome:
    """Local passes and aggregation of a round, the messages added up as they come.

    Args:
      run: whose method has sums, and whose attack forges no messages.
      cohort: of the round.
    """
    sums = run.algorithm.streamed
    assert sums is not None
    rows, extras = _rows_only(cohort.state), {**cohort.extras, **run.constants}
    per_entry = {name: value for name, value in cohort.extras.items() if name in PER_CLIENT_EXTRAS}
    of_all = {name: value for name, value in cohort.extras.items() if name not in PER_CLIENT_EXTRAS}
    shared = StreamInput(cohort.shared, cohort.params, without_rows(cohort.state), of_all, jnp.zeros((), bool))
    entries = StreamedClient(cohort.clients, rows, per_entry)

    def over_clients(shared: StreamInput) -> CohortPass:
        one = lambda shared, entry: sent_pass(run, shared.round, entry.client)
        accumulate = functools.partial(_accumulate, run, sums)
        return sum_clients(run.batching, run.mesh, one, accumulate, shared, entries)

    ready, ((total, benign), (kept, local, accepted)) = _pass_once_or_twice(sums, over_clients, shared, extras)
    finished = sums.finish(cohort.params, total, completed(ready, rows), kept, **extras)
    return RoundOutcome(*finished, local, accepted, benign)


def _accumulate(run: Run, sums: Sums, shared: StreamInput, chunk: StreamedClient, results: LocalResult) -> CohortPass:
    """What a chunk of clients adds to the sums, and what is kept of each of them."""
    extras = {**shared.extras, **chunk.extras, **run.constants}
    if sums.needs_first_pass is not None:
        extras["first_pass"] = shared.first_pass
    total, kept = sums.accumulate(shared.params, results.uplink, completed(shared.state, chunk.rows), **extras)
    benign = ()
    if run.attack is not None:
        benign = sum_of_benign(results.uplink.delta, chunk.client.malicious, chunk.extras.get("valid"))
    accepted = tree.usable_rows(results.uplink) | (not run.reject_nonfinite)
    return (total, benign), (kept, results._replace(uplink=()), accepted)


def _pass_once_or_twice(
    sums: Sums, over_clients: Callable[[StreamInput], CohortPass], shared: StreamInput, extras: dict[str, Any]
) -> tuple[State, CohortPass]:
    """Passes over the cohort, twice where the state is not ready for ``accumulate`` before a first pass.

    Args:
      sums: of the algorithm.
      over_clients: a pass over the cohort.
      shared: of a pass that is not a first one.
      extras: of ``prepare``.

    Returns:
      The state that is ready, and what is left of the pass with it.
    """
    if sums.needs_first_pass is None:
        return shared.state, over_clients(shared)
    twice, prepare = sums.needs_first_pass(shared.state), sums.prepare
    assert prepare is not None
    over_clients = jax.jit(over_clients, inline=True)  # traced once, for its shapes as well as in the loop

    def turn(index: jax.Array, carry: tuple[State, CohortPass]) -> tuple[State, CohortPass]:
        state, _ = carry
        first_pass = twice & (index == 0)
        result = over_clients(shared._replace(state=state, first_pass=first_pass))
        (total, _), (kept, *_) = result
        prepared = lambda: prepare(total, state, kept, **extras)
        return jax.lax.cond(first_pass, prepared, lambda: state), result

    # One loop of one or two turns, so that the local pass is compiled once.
    shapes = jax.eval_shape(over_clients, shared)
    blank = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)
    return jax.lax.fori_loop(0, 1 + twice.astype(jnp.int32), turn, (shared.state, blank))


def _rows_only(state: State) -> Any:
    """The rows that a state keeps for every client, and None in the place of everything else."""
    keep = lambda node: node if per_client.is_per_client(node) else None
    return jax.tree.map(keep, state, is_leaf=per_client.is_per_client)


MODEL_STATES = ("auto", "average", "weighted", "median", "frozen", "local")
"""What can become of the statistics; ``"auto"`` is the average, or the median under an attack that forges."""


def resolve_statistics(model_state: str, attack: Attack | None) -> str:
    """What ``"auto"`` stands for."""
    if model_state != "auto":
        return model_state
    return "average" if attack is None or not attack.forges else "median"


def forged_statistics(run: Run, cohort: Cohort, before: Statistics, local: Statistics) -> Statistics:
    """The statistics ``[S, ...]`` as they reach the server.

    Args:
      run: whose attack forges them, where they are in a message.
      cohort: of the round.
      before: the server's.
      local: the clients', leading axis ``[S]``.
    """
    attack, clients, shared = run.attack, cohort.clients, cohort.shared
    sent = run.statistics not in ("local", "frozen") and jax.tree.leaves(local)
    if not sent or attack is None or not attack.forges or any(name not in POISON_NEEDS for name in attack.needs):
        return local
    # Numbers such as counters are no quantities that an attack could scale.
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    changes = jax.tree.map(lambda new, old: new - old if floating(new) else None, local, before)
    attackers = attack.attackers(clients.malicious, shared.round)
    told = {"client_ids": clients.client_id, "round": shared.round}
    key = shared.key_of("attack on statistics")
    forged = attack.forge(key, Uplink(changes), attackers, **told, **_absence(cohort)).delta
    return jax.tree.map(
        lambda change, new, old: new if change is None else jnp.where(tree.expand(attackers, new), old + change, new),
        forged,
        local,
        before,
        is_leaf=lambda x: x is None,
    )


def combined_statistics(
    how: str,
    before: Statistics,
    local: Statistics,
    num_examples: Int[Array, " clients"],
    valid: Bool[Array, " clients"] | None,
) -> Statistics:
    """The server's statistics after a round.

    Args:
      how: one of :data:`MODEL_STATES` but ``"auto"``.
      before: the server's; it keeps them where no client counts.
      local: the clients', leading axis ``[S]``.
      num_examples: of the clients, ``[S]``.
      valid: which clients took part, ``[S]``; None for all.
    """
    if how == "frozen" or not jax.tree.leaves(before):
        return before
    counted = _finite(local) & (True if valid is None else valid)
    weights = jnp.where(counted, num_examples if how == "weighted" else 1, 0).astype(jnp.float32)

    def leaf(new: jax.Array, old: jax.Array) -> jax.Array:
        kept = jnp.where(tree.expand(counted, new), new, jnp.zeros((), new.dtype))
        if not jnp.issubdtype(new.dtype, jnp.floating):  # a counter: that of the client which is furthest
            value = kept.max(0)
        elif how == "median":
            value = jnp.nanmedian(jnp.where(tree.expand(counted, new), new, jnp.nan), axis=0)
        else:
            share = weights / jnp.maximum(weights.sum(), 1)
            value = tree.product(share, kept.reshape(len(share), -1)).reshape(old.shape)
        return jnp.where(counted.any(), value, old).astype(old.dtype)

    return jax.tree.map(leaf, local, before)


def _finite(local: Statistics) -> Bool[Array, " clients"]:
    """Which clients' statistics are finite in every entry, ``[S]``."""
    return jnp.stack([jnp.isfinite(x).reshape(x.shape[0], -1).all(1) for x in jax.tree.leaves(local)]).all(0)
