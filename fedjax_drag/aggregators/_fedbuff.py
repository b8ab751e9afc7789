"""FedBuff: a buffer of messages, each with a weight by its staleness."""

from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.aggregators._stale import StaleAggregator
from fedjax_drag.ops.rules import Moved
from fedjax_drag.types import Deltas, Params, Scalar, State


class fedbuff(StaleAggregator):
    """Discounts each delta by its staleness, then applies another rule to the buffer.

    ::

        theta += server_step_size * rule(s(tau_1) g_1, ..., s(tau_K) g_K)
        s(tau) = (1 + tau)^-exponent                                   "polynomial"
        s(tau) = 1 where tau <= grace, else 1 / (1 + slope (tau - grace))   "hinge"
        s(tau) = 1                                                     "constant"

    where ``tau_m`` counts the updates since client m has started. In a run whose cohorts are not
    :func:`~fedjax_drag.selection.asynchronous` nothing is stale.

    Args:
      aggregator: the rule that gets the discounted deltas; None for the mean, :func:`fedavg`.
      staleness: ``s``, see above.
      exponent: of ``"polynomial"``, >= 0. Paper: 0.5.
      slope: of ``"hinge"``, >= 0. Xie et al.: 10.
      grace: updates before ``"hinge"`` discounts, >= 0. Xie et al.: 4.
      server_step_size: > 0.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what ``aggregator`` needs, and ``staleness``. Metrics:
      ``weight`` (the wrapped rule's times ``s(tau_m)``), ``cosine`` of the client's own delta to the update, and the
      wrapped rule's scalars. The gradient is the wrapped rule's, through the discounted deltas.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      that of the wrapped rule

    Cost:
      that of the wrapped rule, and 4 passes; memory S x d

    References:
      Nguyen et al., Federated learning with buffered asynchronous aggregation, AISTATS 2022, Algorithm 1, with its
      weights 1 / sqrt(1 + tau); the other weights are those of Xie, Koyejo and Gupta, Asynchronous federated
      optimization, 2019. Interpretation: the sum is divided by the number of messages, as in Algorithm 1, and not by
      the sum of their weights. The authors' code (FLSim) also divides the weights by that of an average staleness,
      which is a larger server_step_size.
    """

    server_step_size: Scalar = 1.0

    def check(self) -> None:
        super().check()
        checks.positive("server_step_size", self.server_step_size)

    def combine(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, staleness: jax.Array, **extras: Any
    ) -> Moved:
        return self.applied(params, deltas, state, self.server_step_size, valid=valid, staleness=staleness, **extras)

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"staleness"}
