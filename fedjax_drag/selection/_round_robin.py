"""Participation in turn: all clients, one cohort after another."""

import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from fedjax_drag.selection._selection import Candidates, Memory, Observed, Selected, Selection


class round_robin(Selection):
    """Goes through the clients in the order of their ids, S in a round, and begins anew after the last one.

    A client that cannot be drawn when it is its turn is passed over until the next time around.

    Returns:
      A :class:`Selection`. Of M clients that can always be drawn, each is in a cohort once before any is there again,
      where S divides M; else one round mixes the last and the first.

    References:
      Cho et al., On the convergence of federated averaging with cyclic client participation, 2023, with groups of S
      clients that take part as a whole.
    """

    def init(self, num_clients: int) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Whose turn it is, and M."""
        return jnp.zeros((), jnp.int32), jnp.asarray(num_clients, jnp.int32)

    def select(self, key: PRNGKeyArray, memory: Memory, candidates: Candidates, cohort_size: int) -> Selected:
        del key
        (turn, _), number = memory, candidates.num_examples.shape[0]
        places = jnp.arange(cohort_size)  # from the one whose turn it is
        if candidates.available is not None:
            waiting = jnp.roll(candidates.available, -turn)
            here, absent = (jnp.nonzero(who, size=cohort_size)[0] for who in (waiting, ~waiting))
            missing = places - waiting.sum()
            places = jnp.where(missing < 0, here, absent[missing])
        return Selected(jnp.sort((places + turn) % number).astype(jnp.int32))

    def observe(self, memory: Memory, observed: Observed) -> Memory:
        turn, number = memory
        passed = jnp.where(observed.drawn, (observed.client_ids - turn) % number + 1, 0).max()
        return (turn + passed) % number, number
