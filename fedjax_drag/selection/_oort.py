"""Oort: clients by the utility of their data, and some that were never drawn."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag import checks, tree
from fedjax_drag.selection._selection import Candidates, Observed, Selected, Selection, ranked, updated
from fedjax_drag.types import Scalar


class Utilities(NamedTuple):
    """What :func:`oort` keeps of every client.

    Attributes:
      utility: at the client's last participation, ``[M]``.
      last: the round of that participation, from 1, ``[M]`` int32; 0 for clients that were never drawn.
    """

    utility: Float[Array, " federation"]
    last: Int[Array, " federation"]


class oort(Selection):
    """Takes clients with much loss, those it has not asked for long, and some that it does not know.

    ::

        U_m = n_m sqrt(mean over the client's examples of loss^2)         at its last participation, round L_m
        u_m = (min(U_m, clip) - least U) / (most U - least U) + sqrt(0.1 log R / L_m)            in round R, from 1
        explore = max(least_exploration, exploration decay^R)
        cohort = S - round(explore S) clients drawn in proportion to u_m, of those with u_m >= cutoff * the last of the
                 best of that number; the rest drawn uniformly among clients that were never drawn

    ``clip`` is the value that the share ``clip`` of the utilities does not exceed. Where clients of one kind are too
    few, there are more of the other.

    Args:
      exploration: share of a cohort that is new clients before the first round, in [0, 1]. Paper: 0.9.
      decay: factor of that share in each round, in (0, 1]. Paper: 0.98.
      least_exploration: below which it does not fall, in [0, 1]. Paper: 0.2.
      cutoff: c, in (0, 1]. Paper: 0.95.
      clip: in (0, 1]. Paper: 0.95.

    Returns:
      A :class:`Selection`.

    Raises:
      ValueError: if an argument is out of range.

    Cost:
      a forward pass over the cohort's examples in each round, and a sort of the utilities of all clients

    References:
      Lai et al., Oort: Efficient federated learning via guided participant selection, OSDI 2021, Algorithm 1, without
      its part about speed, as the paper's "Oort w/o Sys": no durations, pacer and penalty, and new clients uniformly.
      Nor are clients left out that were drawn often. Interpretations: losses are those at the parameters that the
      client received, over all of its examples, where the paper collects them while it trains; utilities are scaled to
      [0, 1] before the term of time is added, as in the authors' code, since that term is below 1.
    """

    exploration: Scalar = 0.9
    decay: Scalar = 0.98
    least_exploration: Scalar = 0.2
    cutoff: Scalar = 0.95
    clip: Scalar = 0.95

    def check(self) -> None:
        checks.in_range("exploration", self.exploration, 0.0, 1.0)
        checks.in_range("decay", self.decay, 0.0, 1.0, open_low=True)
        checks.in_range("least_exploration", self.least_exploration, 0.0, 1.0)
        checks.in_range("cutoff", self.cutoff, 0.0, 1.0, open_low=True)
        checks.in_range("clip", self.clip, 0.0, 1.0, open_low=True)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"start_loss"})

    def init(self, num_clients: int) -> Utilities:
        return Utilities(jnp.zeros(num_clients), jnp.zeros(num_clients, jnp.int32))

    def select(self, key: PRNGKeyArray, memory: Utilities, candidates: Candidates, cohort_size: int) -> Selected:
        explored, here = memory.last > 0, candidates.available
        here = jnp.ones(explored.shape, bool) if here is None else here
        known, new = explored & here, ~explored & here
        score = self._scores(memory, known, candidates.round + 1)

        share = jnp.maximum(self.least_exploration, self.exploration * self.decay ** (candidates.round + 1))
        num_new = jnp.minimum(jnp.round(share * cohort_size), new.sum()).astype(jnp.int32)
        num_known = jnp.minimum(cohort_size - num_new, known.sum())

        # Clients drawn one after another in proportion to a number are the first by its logarithm and a Gumbel lot.
        by_score, by_lot = jax.random.split(key)
        best = score[ranked(score, known, cohort_size)]
        # Scores that are NaN, as of losses that are infinite, cut off nobody.
        good = known & ~(score < self.cutoff * best[jnp.maximum(num_known - 1, 0)])
        lot = jax.random.gumbel(by_score, score.shape, mode="high")
        exploited = ranked(jnp.log(score) + lot, good, cohort_size)
        # Then new clients, and where they are too few, those that cannot be drawn.
        lot = jax.random.uniform(by_lot, score.shape)
        others = ranked(jnp.where(new, lot, lot - 1), ~known, cohort_size)
        place = jnp.arange(cohort_size)
        return Selected(jnp.sort(jnp.where(place < num_known, exploited, others[place - num_known])))

    def _scores(
        self, memory: Utilities, known: Bool[Array, " federation"], now: Int[Array, ""]
    ) -> Float[Array, " federation"]:
        """``u`` of the clients in ``known``."""
        utility = jnp.where(known, memory.utility, jnp.nan)
        least, clip = jnp.nanmin(utility), jnp.nanquantile(utility, self.clip)
        scaled = (jnp.minimum(utility, clip) - least) * tree.inverse(jnp.nanmax(utility) - least)
        return scaled + jnp.sqrt(0.1 * jnp.log(now) / jnp.maximum(memory.last, 1))

    def observe(self, memory: Utilities, observed: Observed) -> Utilities:
        assert observed.start_loss is not None
        utility = observed.num_examples * observed.start_loss.root_mean_square
        return Utilities(updated(memory.utility, observed, utility), updated(memory.last, observed, observed.round + 1))
