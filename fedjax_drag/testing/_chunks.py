"""A round whose messages come in chunks, as the engine streams them."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import per_client
from fedjax_drag.testing._promises import rows_of
from fedjax_drag.types import Params, State, Sums

_CHUNK = 3


def round_in_chunks(
    sums: Sums, params: Params, messages: Any, state: State, extras: dict[str, Any]
) -> tuple[Params, State]:
    """Parameters and state after a round, from the sums of its chunks.

    Args:
      sums: of a method.
      params: the global parameters.
      messages: of the cohort, leading axis ``[S]``.
      state: of the federation, with the rows of all clients.
      extras: of the round.
    """
    size = jax.tree.leaves(messages)[0].shape[0]

    def pass_over(state: State, **first_pass: Any) -> tuple[Any, Any]:
        totals, kept = [], []
        for start in range(0, size, _CHUNK):
            rows = slice(start, start + _CHUNK)
            own = per_client.gather(state, extras["client_ids"][rows])
            chunk = jax.tree.map(lambda x, rows=rows: x[rows], messages)
            part, some = sums.accumulate(params, chunk, own, **rows_of(extras, rows), **first_pass)
            totals.append(part)
            kept.append(some)
        total = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *totals)
        return total, jax.tree.map(lambda *parts: jnp.concatenate(parts), *kept)

    if sums.needs_first_pass is not None:
        assert sums.prepare is not None, "sums with needs_first_pass need prepare"
        total, kept = pass_over(state, first_pass=True)
        ready = sums.prepare(total, state, kept, **extras)
        state = jax.lax.cond(sums.needs_first_pass(state), lambda: ready, lambda: state)
    total, kept = pass_over(state)
    return sums.finish(params, total, state, kept, **extras)
