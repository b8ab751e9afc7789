"""What a selection is: who of the clients that can be drawn takes part in a round."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag.kinds import Kind
from fedjax_drag.types import Part
from fedjax_drag.types._part import undefined

KNOWLEDGE = ("candidate_losses", "start_loss", "train_loss")
"""What ``needs`` of a selection can name: what a server would have to ask of single clients."""

Memory = Any
"""What a selection keeps from round to round: a pytree of arrays; ``()`` for nothing."""


class Candidates(NamedTuple):
    """What a server knows of the clients before it draws a cohort.

    Attributes:
      num_examples: that each client trains on, ``[M]`` int32.
      available: who can be drawn, ``[M]`` bool; None for everybody.
      round: int32 scalar, from 0.
      losses: ``(client_ids, batch_size) -> losses``, the mean loss of the global parameters on the training examples of
        some clients: on ``batch_size`` of each, drawn with replacement, or None for all. None unless ``needs`` has
        ``"candidate_losses"``.
      seconds: ``(client_ids) -> seconds``, how long clients that start now take until they answer, by the run's clock;
        None where it has none.
    """

    num_examples: Int[Array, " federation"]
    available: Bool[Array, " federation"] | None
    round: Int[Array, ""]
    losses: Callable[..., Float[Array, " some"]] | None = None
    seconds: Callable[..., Float[Array, " some"]] | None = None


class Arrivals(NamedTuple):
    """What is known of a cohort whose clients have started in this round or in earlier ones.

    Attributes:
      arrived: who has, ``[S]`` bool; the others fill up the cohort.
      staleness: rounds since each has started, ``[S]`` int32.
      seconds: since the round before, float32 scalar.
    """

    arrived: Bool[Array, " clients"]
    staleness: Int[Array, " clients"]
    seconds: Float[Array, ""]


class Selected(NamedTuple):
    """A cohort.

    Attributes:
      client_ids: ``[S]`` int32, ascending. Clients that cannot be drawn are there only where the others are too few.
      weight: ``[S]`` float32 with ``E mean_m weight_m x_m = sum_m n_m x_m / sum_m n_m``, the sum on the right over all
        clients that can be drawn; the mean is over those of the cohort that can. None where no such weight is known.
      arrivals: of a selection with ``max_staleness``; None where all clients start in this round.
      memory: with which the selection goes on where the draw changes it; None for that before.
    """

    client_ids: Int[Array, " clients"]
    weight: Float[Array, " clients"] | None = None
    arrivals: Arrivals | None = None
    memory: Memory = None


class StartLoss(NamedTuple):
    """Losses of a client's training examples, of parameters that did not move yet.

    Attributes:
      mean: over the examples.
      root_mean_square: the root of the mean of squares over the examples.
    """

    mean: Float[Array, "*clients"]
    root_mean_square: Float[Array, "*clients"]


class Observed(NamedTuple):
    """What a server has learned in a round; every array has an entry for each client of the cohort, ``[S]``.

    Attributes:
      client_ids: of the cohort.
      drawn: who received the server's message.
      valid: whose message arrived and is usable.
      num_examples: that each trains on.
      round: int32 scalar, from 0.
      start_loss: where the local passes started; None unless ``needs`` has ``"start_loss"``.
      train_loss: mean mini-batch loss of the local pass; None unless ``needs`` has ``"train_loss"``.
    """

    client_ids: Int[Array, " clients"]
    drawn: Bool[Array, " clients"]
    valid: Bool[Array, " clients"]
    num_examples: Int[Array, " clients"]
    round: Int[Array, ""]
    start_loss: StartLoss | None = None
    train_loss: Float[Array, " clients"] | None = None


class Selection(Part):
    """Who takes part in a round.

    A selection is a subclass with ``select``, and what else it needs. All methods are pure and jittable, and what it
    keeps is part of the run's state.

    Attributes:
      needs: what it asks of single clients, of :data:`KNOWLEDGE`.
      repeats: whether a client may be in a cohort twice.
      max_staleness: of a selection whose clients may have started in earlier rounds, by the run's clock: for how many
        rounds back the run keeps what the server has sent. None where all clients of a cohort start in its round.
    """

    max_staleness = cast("int | None", None)  # no annotation: a class variable, or a field of a subclass

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    @property
    def repeats(self) -> bool:
        return False

    def check_sizes(self, num_clients: int, cohort_size: int) -> None:
        """Raises ValueError for a federation of M clients and cohorts of S that it cannot serve."""
        del num_clients, cohort_size

    def init(self, num_clients: int) -> Memory:
        """The memory before the first round, for M clients; by default none."""
        del num_clients
        return ()

    def select(self, key: PRNGKeyArray, memory: Memory, candidates: Candidates, cohort_size: int) -> Selected:
        """Draws a cohort.

        Args:
          key: of this round.
          memory: from ``init`` or the round before.
          candidates: who can be drawn.
          cohort_size: S.
        """
        raise undefined(self, "select")

    def observe(self, memory: Memory, observed: Observed) -> Memory:
        """The memory after a round, of the same structure, shapes and dtypes; by default as before.

        Args:
          memory: from ``init`` or the round before.
          observed: what the round has shown.
        """
        del observed
        return memory


SELECTION = Kind(Selection, "a selection, such as fd.selection.power_of_choice(d=20)", ("selection",))


def updated(memory: Array, observed: Observed, values: Any) -> Array:
    """An entry of the memory ``[M]`` with the ``values`` ``[S]`` of the clients whose message is usable."""
    ids = observed.client_ids
    return memory.at[ids].set(jnp.where(observed.valid, values, memory[ids]))


def ranked(
    scores: Float[Array, " some"], available: Bool[Array, " some"] | None, number: int
) -> Int[Array, " clients"]:
    """The places of the ``number`` highest scores, the highest first; those that are not available come last.

    A score that is NaN is lower than all others.
    """
    scores = jnp.nan_to_num(scores, nan=_LEAST, posinf=-_LEAST, neginf=_LEAST)
    return jax.lax.top_k(scores if available is None else jnp.where(available, scores, -jnp.inf), number)[1]


_LEAST = float(jnp.finfo(jnp.float32).min)
