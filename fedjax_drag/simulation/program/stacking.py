"""The server side on the whole cohort: the clients' messages as a stack ``[S, *p]``, forged, then aggregated."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.compression import _channel as channel
from fedjax_drag.simulation.devices.placement import split_coordinates
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.attack_metrics import sum_of_benign
from fedjax_drag.simulation.program.client_pass import ClientPass
from fedjax_drag.simulation.program.dissimilarity import make_dissimilarity, requested
from fedjax_drag.simulation.program.work import Cohort, LocalResult, Outcome, RunState, ServerSide, Work
from fedjax_drag.types import POISON_NEEDS, Algorithm, Attack, Params, State, Uplink


def make_stack(algorithm: Algorithm, attack: Attack | None, work: Work, client_pass: ClientPass) -> ServerSide:
    """Builds the server side of rounds whose messages are stacked; its scratch holds the clients' results.

    Args:
      algorithm: the method.
      attack: whose ``forge`` changes what malicious clients send, or None.
      work: what the clients do.
      client_pass: one client's work.
    """
    dissimilarity = _make_dissimilarity(algorithm, work)
    aggregate = functools.partial(_aggregate, algorithm, work, dissimilarity)

    def preview(state: RunState, cohort: Cohort, of_benign: jax.Array | None, uplink: Uplink) -> Params:
        """The change of the parameters as an attacker computes it, who does not know the server's random draw."""
        key = sampling.round_key(cohort.shared.key, "attack on server", state.round)
        moved, _ = aggregate(state.params, cohort, uplink, of_benign, key=key)
        return tree.subtract(moved, state.params)

    def stack(state: RunState, cohort: Cohort, scratch: LocalResult | None = None) -> tuple[Outcome, LocalResult]:
        run_client = functools.partial(client_pass, algorithm.client)
        local = work.execution.over_clients(run_client, cohort.shared, cohort.clients, scratch)
        uplink, benign_sum = local.uplink, ()
        if attack is not None:
            benign_sum = sum_of_benign(local.uplink.delta, cohort.clients.malicious, cohort.valid)
            of_benign = None
            if dissimilarity is not None and "aggregate" in attack.needs:  # once, however often the attack tries
                of_benign = dissimilarity(cohort, uplink, None)
            preview_of = functools.partial(preview, state, cohort, of_benign)
            uplink = _forge(attack, state, cohort, uplink, preview_of, tells_valid=work.may_be_absent)
            if work.compresses_forged:
                uplink = _as_sent(attack, work, state, cohort, uplink)
        accepted = tree.usable_rows(uplink) | (not work.reject_nonfinite)
        return Outcome(*aggregate(state.params, cohort, uplink), local, accepted, benign_sum), local

    return stack


_Dissimilarity = Callable[[Cohort, Uplink, jax.Array | None], jax.Array]
"""``(cohort, uplink, of_benign) -> dissimilarity [S]``; with ``of_benign`` ``[S]`` only malicious clients' models
predict, and it has those of the others."""


def _make_dissimilarity(algorithm: Algorithm, work: Work) -> _Dissimilarity | None:
    """The extra ``dissimilarity`` of a cohort's messages; None if the algorithm has no use for it."""
    distance = requested(algorithm.needs)
    if distance is None:
        return None
    measure = make_dissimilarity(distance, work.model.apply, work.model.preprocess, work.execution.over_clients)

    def dissimilarity(cohort: Cohort, uplink: Uplink, of_benign: jax.Array | None) -> jax.Array:
        shared, (malicious, counts) = cohort.shared, (cohort.clients.malicious, cohort.clients.num_examples)
        if of_benign is not None:
            counts = jnp.where(malicious, counts, 0)
        models = (shared.model, shared.downlink.start, uplink.delta)
        found = measure(shared.federation.train, *models, cohort.clients.examples, counts)
        return found if of_benign is None else jnp.where(malicious, found, of_benign)

    return dissimilarity


def _aggregate(
    algorithm: Algorithm,
    work: Work,
    dissimilarity: _Dissimilarity | None,
    params: Params,
    cohort: Cohort,
    uplink: Uplink,
    of_benign: jax.Array | None = None,
    **changes: Any,
) -> tuple[Params, State]:
    """The algorithm's server side on the messages ``uplink``; ``changes`` replace extras of the cohort."""
    extras = {**cohort.extras, **work.constants, **changes}
    if dissimilarity is not None:  # of what is uploaded, and before devices exchange it
        extras["dissimilarity"] = dissimilarity(cohort, uplink, of_benign)
    if algorithm.split == "coordinates":
        uplink = split_coordinates(uplink, work.execution.mesh)
    return algorithm.aggregate(params, uplink, cohort.state, **extras)


def _forge(
    attack: Attack,
    state: RunState,
    cohort: Cohort,
    uplink: Uplink,
    aggregate: Callable[[Uplink], Params],
    tells_valid: bool,
) -> Uplink:
    """The messages after the attack; ``aggregate`` is what an attacker that needs it may call."""
    if not attack.forges:
        return uplink
    knowledge = {
        "last_update": state.last_update,
        "root_delta": cohort.extras.get("root_delta"),
        "aggregate": aggregate,
    }
    return attack.forge(
        sampling.round_key(cohort.shared.key, "attack", state.round),
        uplink,
        attack.attackers(cohort.clients.malicious, state.round),
        client_ids=cohort.clients.client_id,
        round=state.round,
        **{name: knowledge[name] for name in attack.needs if name not in POISON_NEEDS},
        **({"valid": cohort.valid} if tells_valid else {}),
    )


def _as_sent(attack: Attack, work: Work, state: RunState, cohort: Cohort, uplink: Uplink) -> Uplink:
    """The messages after the attack, those of attackers as what the server decompresses of them."""
    if work.compression is None or not attack.forges:
        return uplink
    ids, malicious = cohort.clients.client_id, cohort.clients.malicious
    key_of = functools.partial(sampling.client_key, cohort.shared.key, "forged compression", state.round)
    sent = jax.vmap(functools.partial(channel.send_once, work.compression))(uplink, jax.vmap(key_of)(ids))
    attacks = attack.attackers(malicious, state.round)
    return jax.tree.map(lambda new, old: jnp.where(tree.expand(attacks, old), new, old), sent, uplink)
