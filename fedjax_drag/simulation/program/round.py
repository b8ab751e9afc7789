"""One round: cohort, local passes, attack, aggregation. A pure function, compiled as part of the run."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from fedjax_drag import per_client, tree
from fedjax_drag.compression import _channel as channel
from fedjax_drag.simulation.devices.placement import bring, placed
from fedjax_drag.simulation.model import statistics
from fedjax_drag.simulation.model.model import Statistics
from fedjax_drag.simulation.participation import attendance
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.attack_metrics import attack_metrics
from fedjax_drag.simulation.program.client_pass import ClientPass, make_client_pass, sending, with_send
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.stacking import make_stack
from fedjax_drag.simulation.program.streaming import make_stream
from fedjax_drag.simulation.program.work import ClientInput, Cohort, LocalResult, Outcome, RoundInput, RunState, Work
from fedjax_drag.types import Algorithm, Attack, Downlink, Params


@runtime_checkable
class Round(Protocol):
    """One round as a pure function."""

    def __call__(
        self, federation: Federation, key: PRNGKeyArray, state: RunState, scratch: Any = None
    ) -> tuple[RunState, dict[str, jax.Array], Any]:
        """Returns the state after the round, its metrics, and a scratch whose buffers the next round may use again."""
        ...


def make_round(algorithm: Algorithm, attack: Attack | None, work: Work) -> Round:
    """Builds one round.

    Metrics are the algorithm's own, ``client_ids`` ``[S]``, ``malicious`` ``[S]`` and those of
    :func:`work_metrics`; where clients may be missing, or the algorithm restricts who is eligible, also ``valid``
    ``[S]``; under attack those of :func:`~fedjax_drag.simulation.program.attack_metrics.attack_metrics`. Random draws
    depend on the key, the round, the client's id and who can be drawn only.
    """
    client_pass = make_client_pass(attack, work)
    make_server = make_stack if work.execution.accumulate_clients is None else make_stream
    # Compressed is what leaves a client, its noise included: a function of it reveals no more.
    server = make_server(algorithm, attack, work, sending(with_send(client_pass, attack), work))

    def round_fn(
        federation: Federation, key: PRNGKeyArray, state: RunState, scratch: Any = None
    ) -> tuple[RunState, dict[str, jax.Array], Any]:
        cohort = open_round(algorithm, attack, work, client_pass, federation, key, state)
        outcome, scratch = server(state, cohort, scratch)
        return *close_round(attack, work, state, cohort, outcome), scratch

    return round_fn


def open_round(
    algorithm: Algorithm,
    attack: Attack | None,
    work: Work,
    client_pass: ClientPass,
    federation: Federation,
    key: PRNGKeyArray,
    state: RunState,
) -> Cohort:
    """Draws the cohort and prepares its messages, data and extras."""
    ids, drawable, available = choose_cohort(algorithm, work.cohort_size, federation, key, state)
    who = attendance.attend(work.training, federation, key, state.round, ids, drawable, available)
    malicious = malicious_in_cohort(federation, key, state.round, ids)
    # The method sees the cohort's rows only, so that it does not matter where those of the others are.
    own_state = per_client.gather(state.algorithm, ids)
    downlink, received = _compressed(work, key, state, algorithm.broadcast(state.params, own_state, ids))
    reachable, examples = _reachable(work, federation, federation.rows[ids])
    shared = RoundInput(reachable, key, state.round, downlink._replace(own=()), state.model)
    kept = per_client.gather(state.clients, ids)
    clients = ClientInput(ids, examples, federation.counts[ids], malicious, downlink.own, kept, who.num_steps)
    if attack is not None and "attacker_index" in attack.needs:
        clients = clients._replace(attacker_index=attacker_indices(federation, malicious, ids))
    extras = {
        "client_ids": ids,
        "round": state.round,
        "key": sampling.round_key(key, "server", state.round),
        "num_examples": clients.num_examples,
    }
    if who.valid is not None:
        extras["valid"] = who.valid
    elif "valid" in algorithm.needs:
        extras["valid"] = jnp.ones(ids.shape, bool)
    if "expected_clients" in algorithm.needs or (algorithm.guarantee is not None and who.valid is not None):
        extras["expected_clients"] = attendance.expected_clients(federation, work.cohort_size, state.round)
    if "malicious" in algorithm.needs:
        extras["malicious"] = malicious
    if "root_delta" in algorithm.needs:
        root = RoundInput(federation, key, state.round, Downlink(downlink.start), state.model)
        extras["root_delta"] = root_delta(work, client_pass, root)
    return Cohort(shared, clients, own_state, who.valid, extras, who.drawn, who.present, received)


def _compressed(work: Work, key: PRNGKeyArray, state: RunState, downlink: Downlink) -> tuple[Downlink, Any]:
    """The downlink that clients receive, and what they have of all broadcasts then."""
    if work.downlink_compression is None:
        return downlink, state.received
    key = sampling.round_key(key, "downlink compression", state.round)
    received = channel.broadcast(work.downlink_compression, state.received, downlink.start, key)
    return downlink._replace(start=received.start), received


def close_round(
    attack: Attack | None, work: Work, before: RunState, cohort: Cohort, outcome: Outcome
) -> tuple[RunState, dict[str, jax.Array]]:
    """The state after a round, and its metrics."""
    ids, malicious, valid = cohort.clients.client_id, cohort.clients.malicious, cohort.valid
    after = per_client.scatter(before.algorithm, outcome.state, ids)
    update = tree.subtract(outcome.params, before.params)
    # Of length 0 are those that the rule cannot know of a streamed cohort.
    of_rule = {name: value for name, value in after.metrics.items() if jnp.size(value)}
    metrics = of_rule | {"client_ids": ids, "malicious": malicious}
    if valid is not None:
        metrics["valid"] = valid
    metrics |= work_metrics(outcome.local, malicious, valid, cohort.drawn, work.may_be_absent, outcome.accepted)
    if attack is not None:
        metrics |= attack_metrics(outcome.benign_sum, update, malicious, of_rule.get("weight"), valid, cohort.present)
    last_update = update if attack is not None and "last_update" in attack.needs else ()
    model = before.model._replace(statistics=_statistics(attack, work, before, cohort, outcome))
    clients = per_client.put(before.clients, outcome.local.kept, ids, valid)
    state = RunState(outcome.params, after, before.round + 1, last_update, model, clients, cohort.received)
    return placed((state, metrics), work.execution.mesh)


def _statistics(attack: Attack | None, work: Work, before: RunState, cohort: Cohort, outcome: Outcome) -> Statistics:
    """The model's statistics on the server after a round."""
    clients, old = cohort.clients, before.model.statistics
    key = sampling.round_key(cohort.shared.key, "attack on statistics", before.round)
    attack = None if work.statistics in ("local", "frozen") else attack  # then they are in no message
    attackers = clients.malicious if attack is None else attack.attackers(clients.malicious, before.round)
    ids = (attackers, clients.client_id, before.round, cohort.valid if work.may_be_absent else None)
    local = statistics.forged(attack, key, old, outcome.local.statistics, *ids)
    return statistics.combined(work.statistics, old, local, clients.num_examples, cohort.valid)


def root_delta(work: Work, client_pass: ClientPass, shared: RoundInput) -> Params:
    """The delta of the server's own local pass on its root data, like the parameters.

    Args:
      work: what the server runs, as ``root_client``.
      client_pass: one client's work.
      shared: of the round, with all data.
    """
    federation, examples = _reachable(work, shared.federation, shared.federation.root_row)
    number = jnp.int32(shared.federation.rows.shape[0])  # the random draws are those of a client after the last one
    server = ClientInput(number, examples, shared.federation.root_count, malicious=jnp.zeros((), bool))
    return client_pass(work.root_client, shared._replace(federation=federation), server).uplink.delta


def _reachable(
    work: Work, federation: Federation, rows: Int[Array, "clients examples"] | Int[Array, " examples"]
) -> tuple[Federation, Any]:
    """The data for work on ``rows``: index lists of clients ``[S, L]``, or of the server's root data ``[R]``.

    Returns:
      The federation that the work sees, and the ``examples`` of its :class:`ClientInput`: the lists, or, where devices
      divide the examples among them, the examples themselves, on the devices that work on them.
    """
    if not work.execution.shard_data:
        return federation, rows
    assert work.execution.mesh is not None
    return federation._replace(train=()), bring(federation.train, rows, work.execution.mesh)


def choose_cohort(
    algorithm: Algorithm, cohort_size: int, federation: Federation, key: PRNGKeyArray, state: RunState
) -> tuple[Int[Array, " clients"], Bool[Array, " federation"] | None, Bool[Array, " federation"] | None]:
    """Draws the clients of the next round.

    Returns:
      Their ids ``[S]``; who could be drawn ``[M]``; and who of these and of those whom the algorithm excludes is
      available ``[M]``. A mask is None where it would be True for all.
    """
    eligible = algorithm.eligible(state.algorithm) if algorithm.eligible else None
    available = attendance.available(federation, key, state.round)
    drawable = attendance.both(eligible, available)
    cohort_key = sampling.round_key(key, "cohort", state.round)
    return sampling.cohort(cohort_key, federation.rows.shape[0], cohort_size, drawable), drawable, available


def malicious_in_cohort(
    federation: Federation, key: PRNGKeyArray, round_index: Int[Array, ""], ids: Int[Array, " clients"]
) -> Bool[Array, " clients"]:
    """Which clients of a cohort are malicious."""
    if federation.malicious_per_cohort is None:
        return federation.malicious[ids]
    order = jax.random.permutation(sampling.round_key(key, "malicious", round_index), ids.shape[0])
    return order < federation.malicious_per_cohort


def attacker_indices(
    federation: Federation, malicious: Bool[Array, " clients"], ids: Int[Array, " clients"]
) -> Int[Array, " clients"]:
    """The number of each malicious client of a cohort among all malicious ones, from 0; of benign clients any."""
    if federation.malicious_per_cohort is None:
        return jnp.cumsum(federation.malicious, dtype=jnp.int32)[ids] - 1
    return jnp.cumsum(malicious, dtype=jnp.int32) - 1


def work_metrics(
    local: LocalResult,
    malicious: Bool[Array, " clients"],
    valid: Bool[Array, " clients"] | None = None,
    drawn: Bool[Array, " clients"] | None = None,
    may_be_absent: bool = False,
    accepted: Bool[Array, " clients"] | None = None,
) -> dict[str, jax.Array]:
    """Metrics of the local passes of a round, scalars.

    ``train_loss``: the mean mini-batch loss of the benign clients whose answer was accepted, NaN if there are none. As
    int32 ``participants``: how many answered; ``local_steps``: the steps of all that worked; ``slowest_steps``: those
    of the one with most, on whom a synchronous round waits. Where clients may be absent also ``drawn``: how many
    worked; and ``silent_rounds``: 1 if no benign client answered, ``train_loss`` then being 0.

    Args:
      local: results with a leading axis ``[S]``.
      malicious: ``[S]`` bool.
      valid: which clients answer, ``[S]``; default everybody.
      drawn: which clients work, ``[S]``; default those that answer.
      may_be_absent: whether a client may be missing for another reason than the method's.
      accepted: whose messages are usable, ``[S]``; default everybody's.
    """
    valid = jnp.ones(malicious.shape, bool) if valid is None else valid
    drawn = valid if drawn is None else drawn
    benign, steps = ~malicious & valid, jnp.where(drawn, local.steps, 0)
    counted = benign if accepted is None else benign & accepted
    metrics = {
        "train_loss": jnp.where(counted, local.loss, 0.0).sum() / counted.sum(),
        "participants": valid.sum(dtype=jnp.int32),
        "local_steps": steps.sum(),
        "slowest_steps": steps.max(),
    }
    if may_be_absent:
        silent = ~benign.any()
        metrics["train_loss"] = jnp.where(silent, 0.0, metrics["train_loss"])
        metrics |= {"drawn": drawn.sum(dtype=jnp.int32), "silent_rounds": silent.astype(jnp.int32)}
    return metrics
