"""TACO's coefficients: how well each client's update agrees with the mean."""

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.types import Deltas

_FIRST = 0.1  # of a client that has not taken part yet


def initial_alpha(num_clients: int) -> jax.Array:
    """``alpha_m`` before any round, ``[M]``."""
    return jnp.full(num_clients, _FIRST, jnp.float32)


def coefficients(deltas: Deltas, counted: jax.Array) -> jax.Array:
    """``(1 - ||g_m|| / sum_j ||g_j||) max(0, cos(g_m, mean g))`` of the clients that count, ``[S]`` in [0, 1).

    High for a short update along the mean, as of clients whose data are like those of the whole; 0 for those that do
    not count, and for the only client of a round.
    """
    lengths = jnp.where(counted, tree.norms(deltas), 0.0) / counted.shape[0]  # so that their sum does not overflow
    total = lengths.sum()
    others = (total - lengths) * tree.inverse(total)  # exactly 0 for the only client, unlike 1 - share
    agreement = jnp.maximum(tree.cosines(deltas, tree.mean(deltas, counted)), 0.0)
    return jnp.where(counted, others * agreement, 0.0).astype(jnp.float32)


def latest(alpha: jax.Array, client_ids: jax.Array, newest: jax.Array, counted: jax.Array) -> jax.Array:
    """``alpha`` ``[M]`` with the newest coefficients of the cohort's clients that count."""
    return alpha.at[client_ids].set(jnp.where(counted, newest, alpha[client_ids]))
