"""Agnostic federated learning: the mixture of clients for which the model is worst."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from optax import projections

from fedjax_drag import checks
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.weighted import Clients, Kept, Step, WeightedAggregator, Weights
from fedjax_drag.types import Params, Scalar


class AflState(NamedTuple):
    """State of :func:`afl`.

    Attributes:
      mixture: ``lambda``, the weight of every client, ``[M]``, on the simplex.
      metrics: of the last round.
    """

    mixture: jax.Array
    metrics: dict[str, jax.Array]


class afl(WeightedAggregator):
    """Minimises ``max_lambda sum_m lambda_m F_m`` over mixtures ``lambda`` of the clients, by descent and ascent.

    With the loss ``F_m`` of a client's examples where its local pass starts, and P the projection onto the simplex::

        theta += (M/S) sum_m lambda_m g_m
        lambda <- P(lambda + gamma (M/S) F),    F_m = 0 for clients that are not in the cohort

    ``lambda`` starts uniform. With all clients in each cohort M/S is 1; else both sums are unbiased where clients are
    drawn uniformly. With ``gamma = 0`` it is :func:`fedavg`.

    Args:
      gamma: step size of the ascent, >= 0; may be traced. Paper: of the order of ``1/sqrt(rounds)``.
      num_clients: M, clients in the federation; default those of the simulation. The state holds a number for each.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks and needs ``start_loss`` and
      ``client_ids``. Metrics: ``mixture``, the cohort's ``lambda_m`` before the ascent; ``weight``, the factor of
      ``g_m``; from the whole stack also ``cosine`` to the update. S counts the clients that are there.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      0: one client moves it anywhere, and one that makes up a loss takes all the weight

    Cost:
      3 passes over the deltas, a forward pass over the examples of the cohort, a sort of M numbers

    References:
      Mohri, Sivek and Suresh, Agnostic federated learning, 2019, Stochastic-AFL with domains that are clients, and
      deltas in the place of gradients: with one local step they are ``-eta`` times those. Interpretation: the
      parameters are the last ones, where the paper returns their mean over the rounds.
    """

    gamma: Scalar = 0.1
    num_clients: int | None = None

    def check(self) -> None:
        checks.in_range("gamma", self.gamma, 0.0)
        if self.num_clients is not None:
            checks.count("num_clients", self.num_clients, 1)

    def init(self, params: Params) -> AflState:
        del params
        clients = checks.known("num_clients", self.num_clients, self.name)
        return AflState(jnp.full(clients, 1 / clients, jnp.float32), empty_metrics("mixture"))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"start_loss", "client_ids"})

    def weigh(self, clients: Clients, state: AflState, **extras: Any) -> Weights:
        del clients
        mixture = state.mixture[extras["client_ids"]]
        return Weights(own=state.mixture.shape[0] * mixture, metrics={"mixture": mixture})

    def after(self, step: Step, state: AflState, *, kept: Kept, **extras: Any) -> tuple[Step, AflState]:
        number = jnp.maximum(kept.valid.sum(), 1)
        ascent = jnp.where(kept.valid, self.gamma * state.mixture.shape[0] / number * extras["start_loss"], 0.0)
        moved = state.mixture.at[extras["client_ids"]].add(ascent.astype(state.mixture.dtype))
        return step, state._replace(mixture=projections.projection_simplex(moved).astype(moved.dtype))
