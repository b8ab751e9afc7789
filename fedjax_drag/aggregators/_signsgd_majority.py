"""SignSGD with majority vote."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.order_statistics import count_entries
from fedjax_drag.ops.screening import MetricsOnly, stateless
from fedjax_drag.ops.sums import cosine_to_sum, summed_rule
from fedjax_drag.types import Aggregator, Deltas, Params, State, Sums


def signsgd_majority(step_size: Any = 1e-3) -> Aggregator:
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
      signSGD with majority vote is communication efficient and fault tolerant, 2019. Reading: the vote is on deltas,
      the clients' local passes, not on single gradients.
    """
    checks.positive("step_size", step_size)

    def accumulate(
        params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any
    ) -> tuple[Params, tuple[()]]:
        del params, state
        return tree.weighted_sum(valid.astype(jnp.float32), jax.tree.map(jnp.sign, deltas)), ()

    def finish(
        params: Params, votes: Params, state: State, kept: tuple[()], *, valid: jax.Array, **_: Any
    ) -> tuple[Params, MetricsOnly]:
        del state, kept
        update = jax.tree.map(lambda v: step_size * jnp.sign(v), votes)
        return tree.move(params, update), MetricsOnly({"weight": tree.uniform_weights(valid)})

    def cosine(deltas: Deltas, votes: Params, valid: jax.Array) -> jax.Array:
        return cosine_to_sum(deltas, jax.tree.map(jnp.sign, votes), valid)

    def agreement(deltas: Deltas, votes: Params, valid: jax.Array) -> jax.Array:
        agreeing = count_entries(lambda values, total: jnp.sign(values) == jnp.sign(total), deltas, votes)
        return valid * agreeing / sum(leaf.size for leaf in jax.tree.leaves(votes))

    hindsight = {"cosine": cosine, "agreement": agreement}
    return summed_rule(stateless("agreement"), Sums(accumulate, finish), hindsight=hindsight)
