"""One round: cohort, downlink, local passes, attack, uplink, aggregation, state."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag import per_client, tree
from fedjax_drag.algorithms import TwoSided
from fedjax_drag.compression import _channel as channel
from fedjax_drag.data.batching import gather
from fedjax_drag.selection import Candidates, Observed, Selected
from fedjax_drag.simulation.devices.model_sharding import num_shares
from fedjax_drag.simulation.devices.placement import bring, placed
from fedjax_drag.simulation.model.model import Model, ModelState, Statistics
from fedjax_drag.simulation.program import sampling, server
from fedjax_drag.simulation.program.evaluation import attack_metrics, work_metrics
from fedjax_drag.simulation.program.examples import losses_of, rehearsed
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.local import client_pass, step_size_of
from fedjax_drag.simulation.program.server import stack, stream
from fedjax_drag.simulation.run import Broadcast, ClientInput, Cohort, Inputs, RoundInput, RoundOutcome, Run, RunState
from fedjax_drag.types import Batch, Downlink, Params, Prediction, State


def one_round(
    inputs: Inputs, state: RunState, scratch: Any = None, selected: Selected | None = None
) -> tuple[RunState, dict[str, jax.Array], Any]:
    """The loop of federated learning, top to bottom; compiled as part of the run.

    Random draws depend on the key, the round, the client's id and who can be drawn only.

    Args:
      inputs: of the run.
      state: before the round.
      scratch: what the round before returned, whose buffers may be used again; None in the first round.
      selected: the cohort, if it is drawn already.

    Returns:
      The state after the round; its metrics, which are the method's own, ``client_ids`` ``[S]``, ``malicious`` ``[S]``
      and those of :mod:`~fedjax_drag.simulation.program.evaluation`; where clients may be missing, or the method
      restricts who is eligible, also ``valid`` ``[S]``; and the scratch for the next round.
    """
    # Cohort. The method sees the cohort's rows only, so that it does not matter where those of the others are.
    (run, federation, _), shared = inputs, RoundInput.before(inputs, state)
    drawable, available = who_can_be_drawn(run, shared, state)
    if selected is None:
        selected = choose_cohort(run, shared, state, drawable)
    ids = selected.client_ids
    malicious = malicious_in_cohort(shared, ids)
    who = sampling.attend(run, shared, selected, drawable, available, malicious)
    own_state = per_client.gather(state.algorithm, ids)
    # Downlink
    downlink = run.algorithm.broadcast(state.params, own_state, ids)
    received = state.received
    if run.downlink_compression is not None:
        sent_key = shared.key_of("downlink compression")
        received = channel.broadcast(run.downlink_compression, received, downlink.start, sent_key)
        downlink = downlink._replace(start=received.start)
    # What all clients receive, and what each receives for itself
    root = shared._replace(downlink=Downlink(downlink.start))
    reachable, examples = _reachable(run, federation, federation.rows[ids])
    shared = shared._replace(federation=reachable, downlink=downlink._replace(own=()))
    if selected.arrivals is not None:
        shared = shared._replace(broadcasts=_with_latest(state.broadcasts, shared))
    kept = per_client.gather(state.clients, ids)
    clients = ClientInput(ids, examples, federation.counts[ids], malicious, downlink.own, kept, who.num_steps)
    if selected.arrivals is not None:
        clients = clients._replace(broadcast=_place(shared.broadcasts, state.round - selected.arrivals.staleness))
    if run.batching.is_batched:
        # The barrier hides that all clients have the same step size. XLA can then fuse the step into the product that
        # computes the gradient; one shared number it first broadcasts to an array as large as all clients' parameters.
        each = jnp.broadcast_to(jnp.asarray(step_size_of(run, state.round)), ids.shape)
        clients = clients._replace(step_size=jax.lax.optimization_barrier(each))
    if run.attack is not None and "attacker_index" in run.attack.needs:
        clients = clients._replace(attacker_index=attacker_indices(federation, malicious, ids))
    if run.attack is not None and run.attack.rehearses:
        shared = shared._replace(memory=rehearsed(run, shared, clients, state.params, who.drawn))
    # What the method's server side is given by keyword: these, and of the others what it needs
    needs, valid, arrivals = run.algorithm.needs, who.valid, selected.arrivals
    numbers = clients.num_examples
    extras = {"client_ids": ids, "round": state.round, "key": shared.key_of("server"), "num_examples": numbers}
    extras |= {} if valid is None else {"valid": valid}
    start_loss = losses_of(run, shared, clients) if "start_loss" in needs | run.selection.needs else None
    others = {
        "valid": lambda: jnp.ones(ids.shape, bool) if valid is None else valid,
        "expected_clients": lambda: sampling.expected_clients(root, run.cohort_size),
        "malicious": lambda: malicious,
        "step_size": lambda: step_size_of(run, state.round),
        "selection_weight": lambda: selected.weight,
        "staleness": lambda: jnp.zeros(ids.shape, jnp.int32) if arrivals is None else arrivals.staleness,
        "starts": lambda: jax.vmap(lambda one: shared.seen_by(one).downlink.start, axis_size=len(ids))(clients),
        "start_loss": lambda: start_loss and start_loss.mean,
        "root_delta": lambda: root_delta(run, root),
        "predict": lambda: jax.tree_util.Partial(_predicted, run.model, state.model),
        "example": lambda: _blank_example(run, federation, clients),
        "root_data": lambda: _root_data(run, federation),
    }
    is_noised = run.algorithm.guarantee or (isinstance(run.algorithm, TwoSided) and run.algorithm.rule.guarantee)
    needed = needs | ({"expected_clients"} if is_noised and valid is not None else set())
    extras |= {name: other() for name, other in others.items() if name in needed}
    cohort = Cohort(state.params, shared, clients, own_state, extras, who, selected, received, start_loss)
    # Local passes, attack, uplink and aggregation: chunk by chunk where sums suffice, else on the stack of messages
    if run.streams:
        outcome = stream(run, cohort)
    else:
        outcome, scratch = stack(run, cohort, scratch)
    # State
    return *_closed(run, state, cohort, outcome), scratch


def who_can_be_drawn(
    run: Run, shared: RoundInput, state: RunState
) -> tuple[Bool[Array, " federation"] | None, Bool[Array, " federation"] | None]:
    """Who can be drawn for the next round ``[M]``, and who of these and of those whom the method excludes is available.

    A mask is None where it would be True for all.
    """
    eligible = run.algorithm.eligible(state.algorithm) if run.algorithm.eligible else None
    available = sampling.available(shared)
    return sampling.both(eligible, available), available


def choose_cohort(
    run: Run, shared: RoundInput, state: RunState, drawable: Bool[Array, " federation"] | None
) -> Selected:
    """The clients of a round, before its broadcast, among those that are ``drawable``."""
    federation = shared.federation

    def losses(client_ids: Int[Array, " candidates"], batch_size: int | None = None) -> Float[Array, " candidates"]:
        number = client_ids.shape[0]
        if run.mesh is not None:  # which divides the candidates
            client_ids = jnp.resize(client_ids, (number + -number % num_shares(run.mesh),))
        reachable, examples = _reachable(run, federation, federation.rows[client_ids])
        malicious = federation.malicious[client_ids]
        asked = ClientInput(client_ids, examples, federation.counts[client_ids], malicious)
        if run.attack is not None and "attacker_index" in run.attack.needs:
            asked = asked._replace(attacker_index=attacker_indices(federation, malicious, client_ids))
        return losses_of(run, shared._replace(federation=reachable), asked, batch_size).mean[:number]

    def seconds(client_ids: Int[Array, " some"]) -> Float[Array, " some"]:
        return sampling.seconds_of(run, shared, client_ids, federation.malicious[client_ids])

    asks = "candidate_losses" in run.selection.needs
    candidates = Candidates(
        federation.counts, drawable, state.round, losses if asks else None, None if run.clock is None else seconds
    )
    return run.selection.select(shared.key_of("cohort"), state.selection, candidates, run.cohort_size)


def root_delta(run: Run, shared: RoundInput) -> Params:
    """The delta of the server's own local pass on its root data, like the parameters.

    Args:
      run: whose ``root_client`` the server runs.
      shared: of the round, with all data.
    """
    federation, examples = _reachable(run, shared.federation, shared.federation.root_row)
    number = jnp.int32(shared.federation.rows.shape[0])  # the random draws are those of a client after the last one
    server = ClientInput(number, examples, shared.federation.root_count, malicious=jnp.zeros((), bool))
    return client_pass(run, run.root_client, shared._replace(federation=federation), server).uplink.delta


def _predicted(model: Model, state: ModelState, params: Params, x: Any) -> Prediction:
    """The extra ``predict``, of the first two arguments: arrays that devices and loops are given."""
    return model.predict(params, state, x)


def _blank_example(run: Run, federation: Federation, clients: ClientInput) -> Any:
    """The extra ``example``: zeros like an input of the model."""
    of_one = jax.tree.map(lambda rows: rows[0], clients.examples)
    one = gather(federation.train, of_one, jnp.zeros(1, jnp.int32), run.model.preprocess)
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), one.x)


def _root_data(run: Run, federation: Federation) -> Batch:
    """The extra ``root_data``: the server's own examples."""
    places = jnp.arange(federation.root_row.shape[0])
    reachable, examples = _reachable(run, federation, federation.root_row)
    root = gather(reachable.train, examples, places, run.model.preprocess)
    return root._replace(real=places < federation.root_count)


def _reachable(
    run: Run, federation: Federation, rows: Int[Array, "clients examples"] | Int[Array, " examples"]
) -> tuple[Federation, Any]:
    """The data for work on ``rows``: index lists of clients ``[S, L]``, or of the server's root data ``[R]``.

    Returns:
      The federation that the work sees, and the ``examples`` of its :class:`ClientInput`: the lists, or, where devices
      divide the examples among them, the examples themselves, on the devices that work on them.
    """
    if not run.shard_data:
        return federation, rows
    assert run.mesh is not None
    return federation._replace(train=()), bring(federation.train, rows, run.mesh)


def _closed(run: Run, before: RunState, cohort: Cohort, outcome: RoundOutcome) -> tuple[RunState, dict[str, jax.Array]]:
    """The state after a round, and its metrics."""
    attack, who, arrivals = run.attack, cohort.who, cohort.selected.arrivals
    valid = who.valid
    ids, malicious = cohort.clients.client_id, cohort.clients.malicious
    after: State = per_client.scatter(before.algorithm, outcome.state, ids)
    update = tree.subtract(outcome.params, before.params)
    # Of length 0 are those that the rule cannot know of a streamed cohort.
    of_rule = {name: value for name, value in after.metrics.items() if jnp.size(value)}
    metrics = of_rule | {"client_ids": ids, "malicious": malicious}
    if valid is not None:
        metrics["valid"] = valid
    if who.seconds is not None:
        metrics["seconds"] = who.seconds
    if arrivals is not None:
        metrics |= {"staleness": arrivals.staleness, "num_too_stale": who.num_too_stale}
    metrics |= work_metrics(run, cohort, outcome)
    if attack is not None:
        metrics |= attack_metrics(outcome.benign_sum, update, malicious, of_rule.get("weight"), valid, who.present)
    last_update = update if attack is not None and "last_update" in attack.needs else ()
    model = before.model._replace(statistics=_statistics(run, before, cohort, outcome))
    keeping = valid
    if attack is not None and not attack.keeps_state:
        keeping = sampling.both(valid, ~attack.attackers(malicious, before.round))
    clients = per_client.put(before.clients, outcome.local.kept, ids, keeping)
    memory = before.selection if cohort.selected.memory is None else cohort.selected.memory
    observed = run.selection.observe(memory, _observed(run, before, cohort, outcome))
    recalled = () if attack is None else attack.observe(cohort.shared.memory, update, before.round)
    kept = last_update, model, clients, cohort.received, observed, cohort.shared.broadcasts, recalled
    state = RunState(outcome.params, after, before.round + 1, *kept)
    return placed((state, metrics), run.mesh, run.specs)


def _observed(run: Run, before: RunState, cohort: Cohort, outcome: RoundOutcome) -> Observed:
    """What the selection learns of a round."""
    everybody, knows = jnp.ones(outcome.accepted.shape, bool), run.selection.needs
    return Observed(
        cohort.clients.client_id,
        everybody if cohort.who.drawn is None else cohort.who.drawn,
        outcome.accepted if cohort.who.valid is None else outcome.accepted & cohort.who.valid,
        cohort.clients.num_examples,
        before.round,
        cohort.start_loss if "start_loss" in knows else None,
        outcome.local.loss if "train_loss" in knows else None,
    )


def _statistics(run: Run, before: RunState, cohort: Cohort, outcome: RoundOutcome) -> Statistics:
    """The model's statistics on the server after a round."""
    old = before.model.statistics
    local = server.forged_statistics(run, cohort, old, outcome.local.statistics)
    counted = sampling.both(cohort.who.valid, outcome.accepted)
    return server.combined_statistics(run.statistics, old, local, cohort.clients.num_examples, counted)


def _with_latest(broadcasts: Broadcast, shared: RoundInput) -> Broadcast:
    """The broadcasts with that of a round in the place of the oldest."""
    sent = Broadcast(shared.downlink.start, shared.downlink.shared, shared.model.statistics)
    place = _place(broadcasts, shared.round)
    return jax.tree.map(lambda x, latest: x.at[place].set(latest), broadcasts, sent)


def _place(broadcasts: Broadcast, round_index: Int[Array, "*clients"]) -> Int[Array, "*clients"]:
    """Where the broadcast of a round is."""
    return round_index % jax.tree.leaves(broadcasts)[0].shape[0]


def malicious_in_cohort(shared: RoundInput, ids: Int[Array, " clients"]) -> Bool[Array, " clients"]:
    """Which clients of a cohort are malicious."""
    if (number := shared.federation.malicious_per_cohort) is None:
        return shared.federation.malicious[ids]
    return jax.random.permutation(shared.key_of("malicious"), ids.shape[0]) < number


def attacker_indices(
    federation: Federation, malicious: Bool[Array, " clients"], ids: Int[Array, " clients"]
) -> Int[Array, " clients"]:
    """The number of each malicious client of a cohort among all malicious ones, from 0; of benign clients any."""
    if federation.malicious_per_cohort is None:
        return jnp.cumsum(federation.malicious, dtype=jnp.int32)[ids] - 1
    return jnp.cumsum(malicious, dtype=jnp.int32) - 1
