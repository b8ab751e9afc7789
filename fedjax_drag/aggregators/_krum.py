"""Krum: the one client that lies closest to its neighbours."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.kernels.distances import distances, pairs
from fedjax_drag.ops.rules import ByzantineAggregator, Moved
from fedjax_drag.ops.screening import MetricsOnly
from fedjax_drag.types import Deltas, Params, State

ENOUGH = "krum sums over n - f - 2 >= 1 neighbours"
"""What a cohort must be large enough for."""


def krum_scores(deltas: Deltas, valid: Bool[Array, " clients"], num_byzantine: int) -> Float[Array, " clients"]:
    """Krum's score ``[S]``: the root of the sum of the n - f - 2 smallest squared distances to other clients.

    ``n`` counts the valid clients; the others have an infinite score. The root ranks as the sum does, and, with every
    row scaled by its own largest distance, a huge delta cannot make the others' scores vanish.
    """
    return _scores(distances_to_others(deltas, valid), valid, num_byzantine)


def _scores(
    apart: Float[Array, "clients clients"], valid: Bool[Array, " clients"], num_byzantine: int, power: int = 2
) -> Float[Array, " clients"]:
    """:func:`krum_scores` from the distances to others, each to a power of which the root is taken in the end."""
    nearest = jnp.sort(apart, axis=1)
    neighbours = jnp.clip(valid.sum() - num_byzantine - 2, 1, jnp.maximum(valid.sum() - 1, 0))
    counted = jnp.where(jnp.arange(len(valid)) < neighbours, nearest, 0.0)
    # A client alone has no neighbour and score 0: it ranks before those that are absent.
    if power == 2:
        return jnp.where(valid, tree.norms(counted), jnp.inf)
    longest = counted.max(1)
    total = jnp.sum((counted * tree.inverse(longest)[:, None]) ** power, 1)
    return jnp.where(valid, longest * total ** (1 / power), jnp.inf)


def distances_to_others(deltas: Deltas, valid: Bool[Array, " clients"]) -> Float[Array, "clients clients"]:
    """Distances ``[S, S]``, infinite from and to absent clients and to oneself."""
    return _to_others(distances(deltas), valid)


def _to_others(
    distance: Float[Array, "clients clients"], valid: Bool[Array, " clients"]
) -> Float[Array, "clients clients"]:
    others = valid[:, None] & valid & ~jnp.eye(len(valid), dtype=bool)
    return jnp.where(others, distance, jnp.inf)


class krum(ByzantineAggregator):
    """Moves by the delta of the client whose n - f - 2 nearest neighbours are closest.

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S - f - 2 >= 1, and the guarantee holds for
        S > 2 f + 2. Default: what the simulation tells by the extra of this name.
      distance_power: of the distances that are summed: 2 (default, as in the paper) or more. With 4 it is Krum as the
        authors of bucketing have it in their code, where squared distances are squared again.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``score`` (see :func:`krum_scores`), ``weight`` (1 for the
      chosen client), ``cosine`` to the chosen delta. ``apply`` raises ValueError for too small a cohort. The
      choice itself has no gradient; through the chosen delta it is 1. Of clients that tie, the first.

    Raises:
      ValueError: if an argument is not such a count.

    Breakdown point:
      f / S with S > 2 f + 2

    Cost:
      2 passes over the deltas and a Gram product (S^2 d operations)

    References:
      Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent, 2017. The sum
      runs over n - f - 2 others as printed there; some libraries take n - f - 1.
    """

    distance_power: int = 2
    reports = ("score",)

    def check(self) -> None:
        super().check()
        checks.count("distance_power", self.distance_power, 2)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        f = self.assumed(extras, size := len(valid), size - 3, "S - 3", ENOUGH)
        apart, cosine = pairs(deltas)
        score = _scores(_to_others(apart, valid), valid, f, self.distance_power)
        weight = valid * jax.nn.one_hot(jnp.argmin(score), len(valid))
        chosen = tree.weighted_sum(weight, deltas)
        metrics = {"weight": weight, "cosine": cosine[jnp.argmin(score)] * valid.any(), "score": score}
        return tree.move(params, chosen), MetricsOnly(metrics)
