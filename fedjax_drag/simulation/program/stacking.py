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
from fedjax_drag.simulation.program.client_pass import sent_pass
from fedjax_drag.simulation.program.clients_axis import make_mapper
from fedjax_drag.simulation.program.dissimilarity import make_dissimilarity, requested
from fedjax_drag.simulation.program.metrics import sum_of_benign
from fedjax_drag.simulation.run import Cohort, LocalResult, RoundOutcome, Run, RunState
from fedjax_drag.types import POISON_NEEDS, Params, State, Uplink


def stack(run: Run, state: RunState, cohort: Cohort, scratch: LocalResult | None) -> tuple[RoundOutcome, LocalResult]:
    """Local passes, attack and aggregation of a round.

    Args:
      run: what is computed.
      state: before the round.
      cohort: of the round.
      scratch: the clients' results of the round before, whose buffers are used again; None in the first round.

    Returns:
      The outcome, and the scratch for the next round.
    """
    over_clients = make_mapper(run.batching, run.mesh)
    local = over_clients(functools.partial(sent_pass, run), cohort.shared, cohort.clients, scratch)
    uplink, benign_sum = local.uplink, ()
    if run.attack is not None:
        benign_sum = sum_of_benign(uplink.delta, cohort.clients.malicious, cohort.valid)
        uplink = forged(run, state, cohort, uplink)
    accepted = tree.usable_rows(uplink) | (not run.reject_nonfinite)
    return RoundOutcome(*aggregate(run, state.params, cohort, uplink), local, accepted, benign_sum), local


def aggregate(
    run: Run, params: Params, cohort: Cohort, uplink: Uplink, of_benign: jax.Array | None = None, **changes: Any
) -> tuple[Params, State]:
    """The method's server side on the messages ``uplink``.

    Args:
      run: what is computed.
      params: global parameters.
      cohort: of the round.
      uplink: of the cohort.
      of_benign: ``dissimilarity`` of the benign clients where it is known; None to compute that of all.
      **changes: in the place of extras of the cohort.
    """
    extras = {**cohort.extras, **run.constants, **changes}
    if requested(run.algorithm.needs) is not None:  # of what is uploaded, and before devices exchange it
        extras |= {"dissimilarity": dissimilarity(run, cohort, uplink, of_benign)}
    if run.algorithm.split == "coordinates":
        uplink = split_coordinates(uplink, run.mesh)
    return run.algorithm.aggregate(params, uplink, cohort.state, **extras)


def dissimilarity(run: Run, cohort: Cohort, uplink: Uplink, of_benign: jax.Array | None = None) -> jax.Array:
    """The extra ``dissimilarity`` ``[S]`` of a cohort's messages; of benign clients ``of_benign`` if that is given."""
    distance = requested(run.algorithm.needs)
    assert distance is not None
    measure = make_dissimilarity(distance, run.model.apply, run.model.preprocess, make_mapper(run.batching, run.mesh))
    shared, (malicious, counts) = cohort.shared, (cohort.clients.malicious, cohort.clients.num_examples)
    if of_benign is not None:  # then only malicious clients' models predict
        counts = jnp.where(malicious, counts, 0)
    models = (shared.model, shared.downlink.start, uplink.delta)
    found = measure(shared.federation.train, *models, cohort.clients.examples, counts)
    return found if of_benign is None else jnp.where(malicious, found, of_benign)


def forged(run: Run, state: RunState, cohort: Cohort, uplink: Uplink) -> Uplink:
    """The messages after the attack, those of attackers as the server decompresses them if they must be compressed."""
    attack, clients = run.attack, cohort.clients
    if attack is None or not attack.forges:
        return uplink
    attackers = attack.attackers(clients.malicious, state.round)
    knowledge = {
        "last_update": state.last_update,
        "root_delta": cohort.extras.get("root_delta"),
        "aggregate": _preview(run, state, cohort, uplink),
    }
    messages = attack.forge(
        sampling.round_key(cohort.shared.key, "attack", state.round),
        uplink,
        attackers,
        client_ids=clients.client_id,
        round=state.round,
        **{name: knowledge[name] for name in attack.needs if name not in POISON_NEEDS},
        **({"valid": cohort.valid} if run.may_be_absent else {}),
    )
    if run.compression is None or not run.compresses_forged:
        return messages
    key_of = functools.partial(sampling.client_key, cohort.shared.key, "forged compression", state.round)
    send_once = functools.partial(channel.send_once, run.compression)
    sent = jax.vmap(send_once)(messages, jax.vmap(key_of)(clients.client_id))
    return jax.tree.map(lambda new, old: jnp.where(tree.expand(attackers, old), new, old), sent, messages)


def _preview(run: Run, state: RunState, cohort: Cohort, honest: Uplink) -> Callable[[Uplink], Params] | None:
    """The change of the parameters as an attacker computes it, who does not know the server's random draw."""
    assert run.attack is not None
    if "aggregate" not in run.attack.needs:
        return None
    measures = requested(run.algorithm.needs) is not None
    of_benign = dissimilarity(run, cohort, honest) if measures else None  # once, however often the attack tries
    key = sampling.round_key(cohort.shared.key, "attack on server", state.round)

    def preview(uplink: Uplink) -> Params:
        return tree.subtract(aggregate(run, state.params, cohort, uplink, of_benign, key=key)[0], state.params)

    return preview
