"""The change of the updates that L-BFGS expects, from the last updates of a run."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.kernels.arithmetic import EXACT, flat_rows
from fedjax_drag.types import Params


def change_along(updates: Any) -> Params:
    """``B u_N``: how far the next update differs from the last one, like the parameters; no gradient.

    Of the updates ``u_0, ..., u_N`` the steps are ``s_j = u_j`` and the changes ``y_j = u_j+1 - u_j``, j < N. ``B`` is
    the matrix of L-BFGS that starts from ``sigma = <y, s> / <s, s>`` of the last pair, in its compact form: with rows S
    and Y of the pairs, L the part of ``S Y'`` below its diagonal and D the diagonal::

        B v = sigma v - [sigma S; Y]' [[sigma S S', L], [L', -D]]^-1 [sigma S; Y] v

    Pairs may be scaled without a change of B, and are scaled to steps of length 1. The inverse is that on the range of
    the matrix, so that steps of length 0 and steps that depend on others do not count. What float32 cannot hold is not
    finite.

    Args:
      updates: of the last N + 1 rounds, the oldest first, ``[N + 1, *p]``.

    References:
      Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in limited memory methods,
      1994, equation 2.17.
    """
    updates = jax.lax.stop_gradient(updates)
    largest = jnp.stack([jnp.abs(leaf).max(initial=0.0) for leaf in jax.tree.leaves(updates)]).max()
    scaled = jax.tree.map(lambda u: tree.inverse(largest) * u, updates)
    rows = jax.tree.map(lambda u: jnp.concatenate([u, u[1:] - u[:-1]]), scaled)  # S, v and Y
    per_leaf = [tree.product(flat_rows(leaf), flat_rows(leaf).T) for leaf in jax.tree.leaves(rows)]
    products = functools.reduce(jnp.add, per_leaf)
    n = len(products) // 2
    unit = tree.inverse(jnp.sqrt(jnp.diag(products)[:n]))
    both = jnp.concatenate([unit, jnp.ones(1), unit])
    products = both[:, None] * products * both
    of_steps, of_changes, along = products[:n, :n], products[:n, n + 1 :], products[:, n]
    sigma = of_changes[-1, -1]
    below, diagonal = jnp.tril(of_changes, -1), jnp.diag(jnp.diag(of_changes))
    middle = jnp.block([[sigma * of_steps, below], [below.T, -diagonal]])
    bent = tree.product(jnp.linalg.pinv(middle, hermitian=True), jnp.concatenate([sigma * along[:n], along[n + 1 :]]))
    weight = both * jnp.concatenate([-sigma * bent[:n], sigma[None], -bent[n:]])
    return jax.tree.map(lambda leaf: largest * jnp.tensordot(weight, leaf, 1, precision=EXACT), rows)
