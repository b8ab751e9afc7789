"""SignSGD with majority vote."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.kernels.order_statistics import count_entries
from fedjax_drag.ops.rules import SummedAggregator, cosine_to_sum
from fedjax_drag.ops.screening import MetricsOnly
from fedjax_drag.types import Deltas, Params, Scalar, State


class signsgd_majority(SummedAggregator):
    """Moves every coordinate by a fixed step in the direction that most deltas have in it.

    Every client has one vote in each coordinate, however long its delta::

        theta += step_size sign(sum_m sign(g_m))

    A zero does not vote, and a tie moves nothing. There is no gradient through the votes (it is 0).

    Args:
      step_size: how far each coordinate moves, > 0; in units of the parameters, as deltas are.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks. Metrics: ``weight`` 1/n (no client
      has a coefficient); from the whole stack also ``agreement``, the share of coordinates in which the client's
      sign is that of the majority, and ``cosine`` to the update.

    Raises:
      ValueError: if ``step_size`` is not positive.

    Breakdown point:
      1/2

    Cost:
      4 passes over the deltas

    References:
      Bernstein et al., signSGD: compressed optimisation for non-convex problems, 2018, Algorithm 3 (majority vote), and
      signSGD with majority vote is communication efficient and fault tolerant, 2019. Interpretation: the vote is on
      deltas, the clients' local passes, not on single gradients.
    """

    step_size: Scalar = 0.001

    reports = ("agreement",)
    compared = ("cosine", "agreement")

    def check(self) -> None:
        checks.positive("step_size", self.step_size)

    def accumulate(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any
    ) -> tuple[Params, tuple[()]]:
        del params, state
        return tree.weighted_sum(valid.astype(jnp.float32), jax.tree.map(jnp.sign, deltas)), ()

    def finish(
        self, params: Params, total: Params, state: State, kept: tuple[()], *, valid: jax.Array, **_: Any
    ) -> tuple[Params, MetricsOnly]:
        del state, kept
        update = jax.tree.map(lambda votes: self.step_size * jnp.sign(votes), total)
        return tree.move(params, update), MetricsOnly({"weight": tree.uniform_weights(valid)})

    def compare(self, deltas: Deltas, total: Params, valid: jax.Array) -> dict[str, jax.Array]:
        agreeing = count_entries(lambda values, total: jnp.sign(values) == jnp.sign(total), deltas, total)
        agreement = valid * agreeing / sum(leaf.size for leaf in jax.tree.leaves(total))
        cosine = cosine_to_sum(deltas, jax.tree.map(jnp.sign, total), valid)
        return {"cosine": cosine, "agreement": agreement}
