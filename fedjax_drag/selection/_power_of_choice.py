"""Power-of-Choice: of some candidates, those with the highest loss."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.selection._selection import Candidates, Memory, Observed, Selected, Selection, ranked, updated
from fedjax_drag.selection._weighted import draw_by_size


class power_of_choice(Selection):
    """Draws ``d`` candidates by size and takes the S of them whose loss is highest.

    ::

        A = d clients, drawn without replacement in proportion to n_m;   cohort = the S clients of A with highest F_m(w)

    The cohort is biased towards clients that the model fits badly, the more the larger ``d`` is. With ``d = S`` it is
    ``weighted()``.

    Args:
      d: candidates in a round, an integer in [S, M].
      loss: what stands for ``F_m(w)``: ``"local"``, the mean loss of the global parameters over all of a candidate's
        examples (pow-d of the paper); or ``"last"``, the mean loss over the client's last local pass, and infinity for
        clients that had none (rpow-d): nothing is asked of candidates.
      batch_size: with ``loss="local"``, the number of examples on which each candidate estimates its loss (cpow-d);
        default all.

    Returns:
      A :class:`Selection`.

    Raises:
      ValueError: if an argument is out of range.

    Cost:
      a forward pass over the examples of d clients in each round with ``loss="local"``; no sort of all clients

    References:
      Cho, Wang and Joshi, Towards understanding biased client selection in federated learning, AISTATS 2022 (Client
      selection in federated learning, 2020), Section 4. Interpretations: a client whose message was not usable keeps
      its last loss; of equal losses the lowest ids are taken, where the paper draws.
    """

    d: int
    loss: Literal["local", "last"] = "local"
    batch_size: int | None = None

    def check(self) -> None:
        checks.count("d", self.d, 1)
        checks.one_of("loss", self.loss, ("local", "last"))
        if self.batch_size is not None:
            checks.count("batch_size", self.batch_size, 1)
            if self.loss == "last":
                raise checks.ArgumentError("batch_size", "goes with loss='local', not 'last'", given=self.batch_size)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"candidate_losses" if self.loss == "local" else "train_loss"})

    def check_sizes(self, num_clients: int, cohort_size: int) -> None:
        if not cohort_size <= self.d <= num_clients:
            allowed = f"in [{cohort_size}, {num_clients}], from cohort_size to the number of clients"
            raise checks.ArgumentError("d", f"must be {allowed}", given=self.d)

    def init(self, num_clients: int) -> Memory:
        return () if self.loss == "local" else jnp.full(num_clients, jnp.inf, jnp.float32)

    def select(self, key: PRNGKeyArray, memory: Memory, candidates: Candidates, cohort_size: int) -> Selected:
        available = candidates.available
        drawn, _ = draw_by_size(key, candidates.num_examples, available, self.d)
        if self.d == cohort_size:
            return Selected(drawn)
        losses = memory[drawn] if self.loss == "last" else self._asked(candidates, drawn)
        highest = ranked(losses, None if available is None else available[drawn], cohort_size)
        return Selected(jnp.sort(drawn[highest]))

    def _asked(self, candidates: Candidates, drawn: jax.Array) -> Float[Array, " candidates"]:
        assert candidates.losses is not None
        return candidates.losses(drawn, self.batch_size)

    def observe(self, memory: Memory, observed: Observed) -> Memory:
        return memory if self.loss == "local" else updated(memory, observed, observed.train_loss)
