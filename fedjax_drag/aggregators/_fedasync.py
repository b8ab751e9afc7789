"""FedAsync: the server mixes a client's model into its own, the less the staler it is."""

from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.aggregators._stale import StaleAggregator
from fedjax_drag.ops.rules import Moved
from fedjax_drag.types import Deltas, Params, Scalar, State


class fedasync(StaleAggregator):
    """Mixes clients' models into the server's: ``theta = (1 - alpha s(tau)) theta + alpha s(tau) w_m``.

    ``w_m`` is the model that client m has come to from the parameters that it has received, those of ``tau`` updates
    ago. With more than one client, ``theta += alpha * rule(s(tau_1) (w_1 - theta), ..., s(tau_K) (w_K - theta))``.

    Args:
      aggregator: the rule that gets ``s(tau_m) (w_m - theta)``; None for the mean, :func:`fedavg`.
      staleness: ``s``, one of ``"polynomial"``, ``"hinge"`` and ``"constant"``, as of :func:`fedbuff`.
      exponent: as of :func:`fedbuff`.
      slope: as of :func:`fedbuff`.
      grace: as of :func:`fedbuff`.
      alpha: weight of a model that is not stale, in (0, 1].

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what ``aggregator`` needs, ``staleness`` and ``starts``.
      Metrics: as of :func:`fedbuff`, ``cosine`` being that of ``w_m - theta`` to the update.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      that of the wrapped rule

    Cost:
      that of the wrapped rule, and 5 passes; memory 2 S x d

    References:
      Xie, Koyejo and Gupta, Asynchronous federated optimization, 2019, Algorithm 1, for cohorts of one; its clients
      minimise with :func:`~fedjax_drag.clients.fedprox`. Interpretation: a proximal term is the client's affair, and
      more than one client are a buffer.
    """

    alpha: Scalar = 0.6

    def check(self) -> None:
        super().check()
        checks.in_range("alpha", self.alpha, 0.0, 1.0, open_low=True)

    def combine(
        self,
        params: Params,
        deltas: Deltas,
        state: State,
        *,
        valid: jax.Array,
        staleness: jax.Array,
        starts: Deltas,
        **extras: Any,
    ) -> Moved:
        models = jax.tree.map(lambda start, delta, p: start + delta - p, starts, deltas, params)  # beside theta
        told = extras | {"starts": starts}
        return self.applied(params, models, state, self.alpha, valid=valid, staleness=staleness, **told)

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"staleness", "starts"}
