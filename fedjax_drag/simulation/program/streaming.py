"""The clients of a round heard one chunk after another, and no more kept of them than sums."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import per_client
from fedjax_drag.per_client import without_rows
from fedjax_drag.simulation.program.attack_metrics import sum_of_benign
from fedjax_drag.simulation.program.clients_axis import Accumulator
from fedjax_drag.simulation.program.local import LocalResult
from fedjax_drag.types import PER_CLIENT_EXTRAS, Params, State, Sums


class Heard(NamedTuple):
    """What is left of a round's local passes.

    Attributes:
      total: the sum that the method asked for.
      benign: the sum of the benign clients' deltas; ``()`` unless wanted.
      kept: what the method kept of each client, leading axis ``[S]``.
      local: the clients' results without their messages.
    """

    total: Any
    benign: Any
    kept: Any
    local: LocalResult


def make_stream(
    sums: Sums, over_clients: Accumulator, client_pass: Callable[..., LocalResult], wants_benign: bool
) -> Callable[..., tuple[Params, State, Heard]]:
    """Builds ``(params, memory, shared, inputs, malicious, **extras) -> (params, state, heard)``.

    Args:
      sums: the method's server side.
      over_clients: how the cohort is gone through.
      client_pass: one client's work, ``(shared, entry) -> LocalResult`` of an entry of ``inputs``.
      wants_benign: whether to add up the benign clients' deltas as well.
    """

    def one(shared, entry):
        return client_pass(shared[0], entry[0])

    def stream(params, memory, shared, inputs, malicious, /, *, reject_nonfinite, **extras):
        of_clients = {name: value for name, value in extras.items() if name in PER_CLIENT_EXTRAS}
        of_all = {name: value for name, value in extras.items() if name not in PER_CLIENT_EXTRAS}
        entries = inputs, malicious, of_clients, _rows_alone(memory)

        def accumulate(shared, entries, results):
            params, small, of_all, first_pass = shared[1]
            _, malicious, of_clients, rows = entries
            told = of_all | of_clients | {"reject_nonfinite": reject_nonfinite}
            if sums.needs_first_pass is not None:
                told |= {"first_pass": first_pass}
            state = per_client.convert(lambda _, mine: mine, small, rows)
            total, kept = sums.accumulate(params, results.uplink, state, **told)
            benign = ()
            if wants_benign:
                benign = sum_of_benign(results.uplink.delta, malicious, of_clients.get("valid"))
            return (total, benign), (kept, results._replace(uplink=()))

        def hear(small, first_pass):
            given = shared, (params, small, of_all, first_pass)
            (total, benign), (kept, local) = over_clients(one, accumulate, given, entries)
            return Heard(total, benign, kept, local)

        told = extras | {"reject_nonfinite": reject_nonfinite}
        small, heard = _prepared(sums, hear, without_rows(memory), told)
        state = per_client.convert(lambda _, mine: mine, small, _rows_alone(memory))
        return *sums.finish(params, heard.total, state, heard.kept, **told), heard

    return stream


def _prepared(sums: Sums, hear: Callable[..., Heard], state: State, extras: dict[str, Any]) -> tuple[State, Heard]:
    """The state that the clients were heard with, and what they said; heard twice if they taught it something."""
    if sums.needs_first_pass is None:
        return state, hear(state, jnp.zeros((), bool))
    twice = sums.needs_first_pass(state)

    def turn(index, carry):
        state, _ = carry
        first_pass = twice & (index == 0)
        heard = hear(state, first_pass)

        def absorbed():
            assert sums.absorb_first_pass is not None
            return sums.absorb_first_pass(heard.total, state, heard.kept, **extras)

        return jax.lax.cond(first_pass, absorbed, lambda: state), heard

    # One loop of one or two turns, so that the local pass is compiled once.
    blank = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(hear, state, twice))
    return jax.lax.fori_loop(0, 1 + twice.astype(jnp.int32), turn, (state, blank))


def _rows_alone(state: State) -> Any:
    """What a state keeps for every client, and None for all else."""
    keep = lambda node: node if per_client.is_per_client(node) else None
    return jax.tree.map(keep, state, is_leaf=per_client.is_per_client)
