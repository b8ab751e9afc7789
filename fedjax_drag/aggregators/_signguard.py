"""SignGuard: clients of ordinary length whose signs are distributed like most others'."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.kernels.order_statistics import count_entries, median_of
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_along
from fedjax_drag.types import Deltas, Params, Scalar, State

_NEAREST = 0.5  # share of the clients within the bandwidth around a client, on the average
_TURNS = 300
_STILL = 1e-3  # of the bandwidth
_SAME = 1e-6  # shares that differ by no more are equal up to rounding


class signguard(PlainAggregator):
    """Averages, clipped to their median length, the deltas that two filters both let pass.

    With the median ``M`` of the lengths ``||g_m||``, and on coordinates drawn at random the shares ``x_m`` of positive,
    zero and negative signs::

        S1 = {m: L <= ||g_m|| / M <= R}
        S2 = the largest cluster that mean shift finds among the x_m
        Delta = mean of min(1, M / ||g_m||) g_m over the clients in both

    Args:
      lower: ``L``, in [0, 1].
      upper: ``R``, >= 1.
      sign_fraction: the share of coordinates whose signs are counted, in (0, 1].

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``key``. Metrics: ``selected`` (1 for clients in both sets,
      else 0), ``scale`` (``min(1, M / ||g_m||)``), ``weight`` (``scale / k`` on the k selected), ``cosine`` to the
      update. If nobody is in both sets, nothing moves. The sets and ``M`` have no gradient.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      1/2 for the length of the step, at most M; its direction is bounded only if S2 holds more honest clients than not

    Cost:
      6 passes over the deltas

    References:
      Xu et al., Byzantine-robust federated learning through collaborative malicious gradient filtering, ICDCS 2022:
      SignGuard, with L, R and a tenth of the coordinates as in the authors' code; without the similarity of
      SignGuard-Sim and -Dist. Interpretations: each coordinate is drawn by itself, where that code takes a contiguous
      tenth. The shares are compared as they are, where it divides each by the largest of the cohort. Mean shift has a
      flat kernel and starts from every client; its bandwidth is scikit-learn's estimate at quantile 0.5, as in that
      code: the mean distance to the farthest of a client's nearest half. Shares that are as far apart, up to rounding,
      are within it, where scikit-learn's rounding decides. Of clusters of the same size the denser one counts.
    """

    lower: Scalar = 0.1
    upper: Scalar = 3.0
    sign_fraction: Scalar = 0.1
    reports = ("selected", "scale")
    split = "clients"

    def check(self) -> None:
        checks.in_range("lower", self.lower, 0.0, 1.0)
        checks.in_range("upper", self.upper, 1.0)
        checks.in_range("sign_fraction", self.sign_fraction, 0.0, 1.0, open_low=True)

    def combine(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, key: jax.Array, **_: Any
    ) -> Moved:
        del state
        norm = tree.norms(deltas)
        middle = median_of(jax.lax.stop_gradient(norm), valid)
        ordinary = (norm >= self.lower * middle) & (norm <= self.upper * middle)
        selected = valid & ordinary & largest_cluster(sign_shares(key, deltas, self.sign_fraction), valid)
        scale = jnp.where(valid, clip_scale(norm, middle), 0.0)
        weight = scale * tree.uniform_weights(selected)
        update, chosen = tree.weighted_sum(weight, deltas), selected.astype(weight.dtype)
        return moved_along(params, deltas, update, weight, selected=chosen, scale=scale)


def sign_shares(key: chex.PRNGKey, deltas: Deltas, fraction: Any) -> Float[Array, "clients 3"]:
    """Each client's shares of positive, zero and negative values in coordinates drawn with probability ``fraction``."""
    leaves, structure = jax.tree.flatten(deltas)
    keys = jax.random.split(key, len(leaves))
    draws = [jax.random.uniform(k, leaf.shape[1:], jnp.float32) for k, leaf in zip(keys, leaves, strict=True)]
    drawn = structure.unflatten([draw < fraction for draw in draws])
    number = jnp.stack([leaf.sum() for leaf in jax.tree.leaves(drawn)]).sum()
    positive = count_entries(lambda g, there: there & (g > 0), deltas, drawn)
    negative = count_entries(lambda g, there: there & (g < 0), deltas, drawn)
    counts = jnp.stack([positive, number - positive - negative, negative], axis=1)
    return counts * tree.inverse(number.astype(jnp.float32))


def largest_cluster(points: Float[Array, "clients 3"], valid: Bool[Array, " clients"]) -> Bool[Array, " clients"]:
    """The members ``[S]`` of the largest cluster that mean shift finds; points far from every centre are in none."""
    size, index = valid.sum(), jnp.arange(len(valid))
    points = jnp.where(valid[:, None], points, 0.0)
    nearest = jnp.sort(jnp.where(valid, _apart(points, points), jnp.inf), axis=1)
    half = jnp.maximum((_NEAREST * size).astype(index.dtype), 1)
    bandwidth = jnp.where(valid, nearest[:, half - 1], 0.0).sum() * tree.inverse(size.astype(points.dtype))
    bandwidth += _SAME  # shares are fractions: many are as far apart as the bandwidth is wide, up to rounding

    def inside(centres: jax.Array) -> jax.Array:
        return (_apart(centres, points) <= bandwidth) & valid

    def shift(now: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        centres, moves, turn = now
        share = jax.vmap(tree.uniform_weights)(inside(centres))
        means = (share[:, :, None] * points).sum(1)
        far = jnp.linalg.norm(means - centres, axis=1) > _STILL * bandwidth
        return jnp.where(moves[:, None], means, centres), moves & far, turn + 1

    def unfinished(now: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return now[1].any() & (now[2] < _TURNS)

    centres = jax.lax.while_loop(unfinished, shift, (points, valid, jnp.zeros((), index.dtype)))[0]
    # Denser centres first; those within the bandwidth of one before them are the same.
    order = jnp.lexsort((*-centres.T[::-1], -inside(centres).sum(1), ~valid))
    centres, present = centres[order], valid[order]
    same = _apart(centres, centres) <= bandwidth

    def keep(kept: jax.Array, one: jax.Array) -> tuple[jax.Array, None]:
        return kept.at[one].set(present[one] & ~(kept & same[one]).any()), None

    kept = jax.lax.scan(keep, jnp.zeros(len(valid), bool), index)[0]
    distance = jnp.where(kept, _apart(points, centres), jnp.inf)
    label = jnp.where(valid & (distance.min(1) <= bandwidth), jnp.argmin(distance, axis=1), -1)
    members = (label[:, None] == index).sum(0)
    return valid & (label == jnp.argmax(members))


def _apart(a: Float[Array, "rows 3"], b: Float[Array, "columns 3"]) -> Float[Array, "rows columns"]:
    return jnp.sqrt(jnp.square(a[:, None, :] - b[None, :, :]).sum(-1))
