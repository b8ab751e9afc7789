"""Pairwise distances between the clients' deltas."""

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.types import Deltas


def distances(deltas: Deltas) -> jax.Array:
    """``||g_i - g_j||`` for all pairs ``[S, S]``.

    Differences are taken before squaring: the shortcut ``|x|^2 + |y|^2 - 2 xy`` loses all digits when
    deltas are close to each other, and picks the wrong client. One client is compared with all others at a
    time, so memory stays at that of the deltas. Rows that are not finite have distance 0 to all.
    """

    def from_client(index):
        return tree.norms(jax.tree.map(lambda g: tree.accurate(g) - tree.accurate(g[index]), deltas))

    return jax.lax.map(from_client, jnp.arange(tree.cohort_size(deltas)))
