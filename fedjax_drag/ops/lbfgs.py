"""The change of the updates that L-BFGS expects, from the last updates of a run."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import tree
from fedjax_drag.kernels.arithmetic import flat_rows
from fedjax_drag.types import Params


def change_along(updates: Any) -> Params:
    """``B u_t-1``: how far the next update differs from the last one, like the parameters; no gradient.

    ``B`` is the matrix of L-BFGS that starts from ``sigma = <y, s> / <s, s>`` of the last pair, in its compact form.
    The steps are ``s_j = u_j-1`` and the changes ``y_j = u_j - u_j-1``. With rows S and Y of the pairs, L the part of
    ``S Y'`` below its diagonal and D the diagonal::

        B v = sigma v - [sigma S; Y]' [[sigma S S', L], [L', -D]]^-1 [sigma S; Y] v

    Pairs may be scaled without a change of B, and are scaled to steps of length 1. The inverse is that on the range of
    the matrix, so that steps of length 0 and steps that depend on others do not count. A result that is not finite is
    replaced by 0.

    Args:
      updates: of the last N + 1 rounds, the oldest first, ``[N + 1, *p]``.

    References:
      Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in limited memory methods,
      1994, equation 2.17.
    """
    updates = jax.lax.stop_gradient(updates)
    last = jax.tree.map(lambda u: u[-1], updates)
    length = tree.norm(last)
    unit = tree.inverse(tree.norms(jax.tree.map(lambda u: u[:-1], updates)))
    steps = jax.tree.map(lambda u: tree.expand(unit, u) * u[:-1], updates)
    changes = jax.tree.map(lambda u: tree.expand(unit, u) * (u[1:] - u[:-1]), updates)
    direction = jax.tree.map(lambda u: tree.inverse(length) * u[None], last)

    of_changes = _products(steps, changes)
    sigma = of_changes[-1, -1]
    below, diagonal = jnp.tril(of_changes, -1), jnp.diag(jnp.diag(of_changes))
    middle = jnp.block([[sigma * _products(steps, steps), below], [below.T, -diagonal]])
    right = jnp.concatenate([sigma * _products(steps, direction), _products(changes, direction)])
    parts = jnp.split(tree.product(jnp.linalg.pinv(middle, hermitian=True), right)[:, 0], 2)

    def along(v: jax.Array, s: jax.Array, y: jax.Array) -> jax.Array:
        bent = jnp.tensordot(sigma * parts[0], s, 1) + jnp.tensordot(parts[1], y, 1)
        return length * (sigma * v[0] - bent)

    change = jax.tree.map(along, direction, steps, changes)
    return tree.where(tree.is_finite(change), change, tree.zeros_like(change))


def _products(a: Any, b: Any) -> Float[Array, "rows others"]:
    """Inner products of the rows of two stacks."""
    per_leaf = jax.tree.map(lambda x, y: tree.product(flat_rows(x), flat_rows(y).T), a, b)
    return functools.reduce(jnp.add, jax.tree.leaves(per_leaf))
