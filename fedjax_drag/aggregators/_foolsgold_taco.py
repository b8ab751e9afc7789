"""FoolsGold as the TACO paper describes it: weights from the agreement with the mean."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.ops.rules import Moved, PlainAggregator
from fedjax_drag.ops.screening import MetricsOnly
from fedjax_drag.types import Deltas, Params, State


class foolsgold_taco(PlainAggregator):
    """Weights each delta by its clipped cosine to the mean of all.

    ::

        rho_m = max(0, cos(mean g, g_m))
        theta += sum_m rho_m g_m / sum_m rho_m

    This is the baseline of the TACO paper. It has little in common with :func:`foolsgold`, which lowers the weight
    of clients that resemble each other.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``trust`` (``rho_m``), ``weight`` (``rho_m / sum rho``),
      ``cosine`` to the mean. If no client is trusted, parameters stay as they were.

    Breakdown point:
      0: one long delta turns the mean towards itself

    Cost:
      4 passes over the deltas

    References:
      Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction, Algorithm 1.
      Interpretations: the paper compares with the aggregate, into which the scores enter themselves; here the plain
      mean takes its place. The extra factor 1/N is dropped; a negative cosine counts as 0.
    """

    reports = ("trust",)
    split = "clients"

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        del state
        cosine = tree.cosines(deltas, tree.mean(deltas, valid))
        trust = jnp.where(valid, jnp.maximum(cosine, 0.0), 0.0)
        weight = jnp.where(valid, trust * tree.inverse(trust.sum()), 0.0)
        metrics = {"weight": weight, "cosine": cosine, "trust": trust}
        return tree.move(params, tree.weighted_sum(weight, deltas)), MetricsOnly(metrics)
