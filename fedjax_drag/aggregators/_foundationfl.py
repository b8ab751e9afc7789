"""FoundationFL: copies of the client farthest from the extremes join the cohort before another rule."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._bucketing import WITHOUT_CLIENT
from fedjax_drag.ops.rules import Moved, WrappingAggregator, wrapped
from fedjax_drag.types import PER_CLIENT_EXTRAS, Deltas, Params, State


class foundationfl(WrappingAggregator):
    """Gives another rule the deltas and m copies of the one that is farthest from the clients' extreme values.

    With the n valid clients' largest and smallest value in each coordinate, ``g_max`` and ``g_min``::

        s_m = min(||g_m - g_max||, ||g_m - g_min||)
        Delta = rule(g_1, ..., g_n, g_k, ..., g_k),   k = arg max_m s_m,   m copies of g_k

    Args:
      aggregator: the rule that gets n + m deltas, in the paper :func:`median` or :func:`trimmed_mean`; its own
        arguments, such as a share to cut off, refer to these. It must not need ``client_ids``, ``malicious``,
        ``start_loss``, ``selection_weight``, ``staleness`` or ``starts``, which a copy does not have.
      num_synthetic: m, >= 0; with 0 it is the other rule. Default: n / 2, rounded down.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what ``aggregator`` needs. A copy has the ``num_examples``
      and the ``dissimilarity`` of its client. Metrics: ``score`` (``s_m``), ``weight`` (the client's and its copies'
      in the wrapped rule), ``cosine`` of the client's own delta to the update, and the wrapped rule's scalars. The
      choice of ``k`` has no gradient. Of clients that tie, the first.

    Raises:
      ValueError: if ``num_synthetic`` is not a count, or ``aggregator`` needs what a copy does not have.

    Breakdown point:
      that of the wrapped rule on n + m deltas of which m may be copies of a malicious one; (n - m) / 2n for the median

    Cost:
      that of the wrapped rule on S + m rows, and 4 passes; memory (S + m) x d

    References:
      Fang et al., Do we really need to design new Byzantine-robust aggregation rules?, NDSS 2025.
      Interpretation: m is the user's choice, n / 2 by default.
    """

    num_synthetic: int | None = None
    reports = ("score",)

    def check(self) -> None:
        super().check()
        if self.num_synthetic is not None:
            checks.count("num_synthetic", self.num_synthetic)
        for name in sorted(self.aggregator.needs & WITHOUT_CLIENT):
            needs = sorted(self.aggregator.needs)
            raise ValueError(f"aggregator with needs={needs}: must not need {name}, as a copy is not a client")

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        size = len(valid)
        copies, wanted = (size // 2, valid.sum() // 2) if self.num_synthetic is None else (self.num_synthetic,) * 2
        score = from_extremes(jax.lax.stop_gradient(deltas), valid)
        chosen = jnp.argmax(jnp.where(valid, score, -1.0))
        rows = jnp.concatenate([jnp.arange(size), jnp.full(copies, chosen)])
        there = jnp.concatenate([valid, (jnp.arange(copies) < wanted) & valid.any()])
        given = {name: value for name, value in extras.items() if name not in WITHOUT_CLIENT}
        given |= {name: given[name][rows] for name in PER_CLIENT_EXTRAS if name in given}
        moved, inner = self.aggregator.apply(params, tree.take(deltas, rows), state.inner, valid=there, **given)
        update = tree.subtract(jax.tree.map(tree.accurate, moved), params)
        weight = jnp.zeros(size).at[rows].add(inner.metrics["weight"])
        return moved, wrapped(inner, {"weight": weight, "cosine": tree.cosines(deltas, update), "score": score})


def from_extremes(deltas: Deltas, valid: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """``s_m`` ``[S]``; 0 for clients that are not valid."""

    def to(extreme: Any, limit: float) -> jax.Array:
        def gaps(leaf: jax.Array) -> jax.Array:
            values = tree.accurate(leaf)
            return values - extreme(jnp.where(tree.expand(valid, values), values, limit), axis=0)

        return tree.norms(jax.tree.map(gaps, deltas))

    nearer = jnp.minimum(to(jnp.max, -jnp.inf), to(jnp.min, jnp.inf))
    return jnp.where(valid, nearer, 0.0)
