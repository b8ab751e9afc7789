"""Multi-Krum: the mean of the clients that lie closest to their neighbours."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.aggregators._krum import ENOUGH, krum_scores
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, moved_by_mean
from fedjax_drag.types import Deltas, Params, State


class multi_krum(ByzantineAggregator):
    """Averages the deltas of the k clients with the lowest Krum scores: ``theta += (1/k) sum_selected g_m``.

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S - f - 2 >= 1. Default: what
        the simulation tells by the extra of this name.
      num_selected: k, the paper's m, from 1 (:func:`krum`) to S; all clients where fewer are valid. Default n - f,
        for n valid clients.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``score`` as in :func:`krum`, ``selected`` (1 or 0),
      ``weight`` (1/k for the selected), ``cosine`` to the update. ``apply`` raises ValueError for too small a cohort.
      The selection has no gradient; through each selected delta it is 1/k. Of clients that tie, the first.

    Raises:
      ValueError: if an argument is not a count.

    Breakdown point:
      f / S with S > 2 f + 2 and k <= S - f

    Cost:
      3 passes over the deltas and a Gram product (S^2 d operations)

    References:
      Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent, 2017, Section 5.
      Interpretations: scores are computed once, and not again after each selection; with n - f selected, their number
      in the paper's experiments, a malicious client may be among them only if it lies near the others.
    """

    num_selected: int | None = None
    reports = ("score", "selected")

    def check(self) -> None:
        super().check()
        if self.num_selected is not None:
            checks.count("num_selected", self.num_selected, 1)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        f = self.assumed(extras, size := len(valid), size - 3, "S - 3", ENOUGH)
        score, n = krum_scores(deltas, valid, f), valid.sum()
        if self.num_selected is not None and self.num_selected > size:
            raise checks.ArgumentError(
                "num_selected", f"must be at most {size}, the size of the cohort", given=self.num_selected
            )
        wanted = jnp.maximum(n - f, 1) if self.num_selected is None else jnp.minimum(self.num_selected, n)
        rank = jnp.argsort(jnp.argsort(score))
        return moved_by_mean(params, deltas, valid & (rank < wanted), score=score)
