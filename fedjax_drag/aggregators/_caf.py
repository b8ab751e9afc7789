"""CAF: clients lose weight by how far they lie out in the direction in which all differ most."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import tree
from fedjax_drag.kernels.distances import distances
from fedjax_drag.ops.principal import principal
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, moved_along
from fedjax_drag.types import Deltas, Params, State


class caf(ByzantineAggregator):
    """Covariance-bound agnostic filter: the weighted mean with the smallest covariance that filtering comes to.

    From ``c_m = 1`` for the n valid clients, while ``sum_m c_m > n - 2 f``::

        mu = sum_m c_m g_m / sum_m c_m
        lambda, v = largest eigenvalue, and its vector, of sum_m c_m (g_m - mu) (g_m - mu)' / sum_m c_m
        tau_m = <g_m - mu, v>^2
        c_m <- c_m (1 - tau_m / max tau)

    ``Delta`` is the ``mu`` of the smallest ``lambda``.

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S > 2 f. With 0 the rule is the mean.
        Default: what the simulation tells by the extra of this name.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``trust`` (``c_m`` of the result, from 0 to 1), ``weight``
      (``c_m / sum c``), ``cosine`` to the update. ``apply`` raises ValueError for too small a cohort. The weights have
      no gradient; through each delta it is its weight.

    Raises:
      ValueError: if ``num_byzantine`` is not a count.

    Breakdown point:
      f / S with S > 2 f

    Cost:
      3 passes over the deltas, a Gram product (S^2 d operations), at most 2 f eigenvalue problems of size S x S

    References:
      Allouah, Guerraoui and Stephan, Towards trustworthy federated learning with untrusted participants, 2025,
      Algorithm 2. Interpretations: the largest tau is that of clients that have weight left, so that every turn takes
      all the weight of one and 2 f turns are enough; ByzFL takes that of all. Eigenvectors are exact, from the
      distances between the clients, where ByzFL takes a step of the power method from a random vector. With f = 0,
      where ByzFL returns nothing, the rule is the mean. n counts the valid clients; where rejections leave 2 f or
      fewer, filtering ends at a weight of 1, and the guarantee is lost.
    """

    reports = ("trust",)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        f = self.assumed(extras, len(valid))
        trust = _filtered(distances(jax.lax.stop_gradient(deltas)), valid, f)
        weight = trust * tree.inverse(trust.sum())
        return moved_along(params, deltas, tree.weighted_sum(weight, deltas), weight, trust=trust)


def _filtered(
    apart: Float[Array, "clients clients"], valid: Bool[Array, " clients"], num_byzantine: int
) -> Float[Array, " clients"]:
    """The weights ``c`` ``[S]`` with which the largest eigenvalue was smallest."""
    everybody = valid.astype(apart.dtype)
    # At least 1: a turn that starts without weight would find no deviation in nobody, and take that for the smallest.
    enough = jnp.maximum(valid.sum() - 2 * num_byzantine, 1).astype(apart.dtype)

    def turn(_: Any, now: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        c, best, smallest = now
        unfinished = c.sum() > enough
        found = principal(apart, c)
        better = unfinished & (found.deviation < smallest)
        offset = tree.stored(jnp.abs(found.along))
        farthest = offset.max()
        # Exactly 0 for the farthest, so that it counts no more in the next turn.
        left = jnp.where((offset == farthest) & (farthest > 0), 0, 1 - jnp.square(offset * tree.inverse(farthest)))
        best, smallest = tree.where(better, (c, found.deviation), (best, smallest))
        return jnp.where(unfinished, c * left, c), best, smallest

    start = (everybody, everybody, jnp.full((), jnp.inf, apart.dtype))
    return jax.lax.fori_loop(0, 2 * num_byzantine, turn, start)[1]
