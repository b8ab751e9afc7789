"""Participation by size: a client with twice as many examples is twice as likely."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.selection._selection import Candidates, Memory, Selected, Selection, ranked


class weighted(Selection):
    """Draws clients in proportion to their numbers of examples.

    ::

        with replacement:     S draws of client m with probability n_m / n
        without replacement:  the same, clients that were drawn already being passed over

    With replacement a client can be in a cohort several times, its delta then counts as often, and the plain mean of
    the deltas is unbiased. Without, large clients are in fewer cohorts than ``S n_m / n``, and the mean is unbiased
    with the weights that ``fedavg(weighting="unbiased")`` takes: client m comes first in a race at a time ``t_m`` that
    is exponential with rate ``n_m``, and with the time ``T`` of the first client that is not in the cohort::

        weight_m = S (n_m / n) / (1 - exp(-n_m T))

    Args:
      replacement: whether a client can be drawn again. Methods that keep something of each client are then refused.

    Returns:
      A :class:`Selection`. Only clients that can be drawn count in ``n``.

    Cost:
      two passes over the numbers of examples of all clients, no sort of them

    References:
      Li et al., On the convergence of FedAvg on non-IID data, 2020, Scheme I (with replacement). The weights without
      replacement are those of Duffield, Lund and Thorup, Priority sampling for estimation of arbitrary subset sums,
      2007, for exponential ranks (Cohen and Kaplan, Summarizing data using bottom-k sketches, 2007).
    """

    replacement: bool = False

    @property
    def repeats(self) -> bool:
        return self.replacement

    def select(self, key: PRNGKeyArray, memory: Memory, candidates: Candidates, cohort_size: int) -> Selected:
        del memory
        examples, available = candidates.num_examples, candidates.available
        rate = examples if available is None else jnp.where(available, examples, 0)
        if self.replacement:
            return Selected(_draw_with_replacement(key, rate, cohort_size), jnp.ones(cohort_size))
        ids, time = draw_by_size(key, examples, available, cohort_size)
        drawn = jnp.minimum(cohort_size, (rate > 0).sum())
        share = rate[ids] * tree.inverse(rate.sum().astype(jnp.float32))
        chance = -jnp.expm1(-rate[ids] * jnp.minimum(time, _LATEST))
        return Selected(ids, drawn * share * tree.inverse(chance))


_LATEST = 1e30  # finite, so that clients that cannot be drawn have the chance 0


def _draw_with_replacement(key: PRNGKeyArray, rate: Int[Array, " federation"], number: int) -> Int[Array, " clients"]:
    """Client ids ``[S]``, ascending, in proportion to integers; any if all are 0."""
    up_to = jnp.cumsum(rate)  # of integers, so that it is exact
    lots = jax.random.randint(key, (number,), 0, jnp.maximum(up_to[-1], 1))
    ids = jnp.searchsorted(up_to, lots, side="right")
    return jnp.sort(jnp.minimum(ids, rate.shape[0] - 1).astype(jnp.int32))


def draw_by_size(
    key: PRNGKeyArray,
    rate: Int[Array, " federation"],
    available: Bool[Array, " federation"] | None,
    number: int,
) -> tuple[Int[Array, " clients"], Float[Array, ""]]:
    """Clients drawn one after another in proportion to ``rate`` among those that are left.

    They are the first of a race in which each client's time is exponential with its rate.

    Args:
      key: of the draw.
      rate: numbers of examples, ``[M]``.
      available: who can be drawn, ``[M]``; the others fill up the number. None for everybody.
      number: of clients.

    Returns:
      Their ids, ascending, and the time of the next one in the race, infinite if there is none.
    """
    # Of 32 bits, since the first of a million clients differ in the last of 23.
    lot = (jax.random.bits(key, rate.shape, jnp.uint32).astype(jnp.float32) + 0.5) * 2.0**-32
    time = -jnp.log1p(-jnp.minimum(lot, 1 - 2.0**-24)) / rate
    first = ranked(-time, available, min(number + 1, rate.shape[0]))
    if number == rate.shape[0]:
        return jnp.sort(first), jnp.float32(jnp.inf)
    next_one = first[number]
    waits = time[next_one] if available is None else jnp.where(available[next_one], time[next_one], jnp.inf)
    return jnp.sort(first[:number]), waits
