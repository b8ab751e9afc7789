"""Ditto."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.algorithms.personal._personal import PersonalMethod
from fedjax_drag.types import Aggregator, Batch, ClientParams, Downlink, GradFn, Params, Scalar


class ditto(PersonalMethod):
    """Beside the global model, which is trained as without it, every client trains one that is held near it.

    ::

        client:  w   -= eta grad f_m(w)
                 v_m -= eta (grad f_m(v_m) + lam (v_m - theta))
        server:  theta += mean g_m                     g_m = w - theta
        own:     v_m

    The global model does not know of the ``v_m``: attacks on it, and rules against them, are those of any run. A client
    that distrusts it takes a small ``lam``.

    Assumes nothing of the local step, which both models take alike, each with an optimizer's state of its own.

    Args:
      lam: strength of the pull to the global model, >= 0; 0 is :func:`local_only` beside the plain rule. Its authors
        choose from 0.05 to 2.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      Metrics: those of ``aggregator``. Two gradients a local step; a model is kept for every client.

    Raises:
      ValueError: if ``lam`` is negative.

    References:
      Li et al., Ditto: Fair and robust federated learning through personalization, ICML 2021, Algorithm 1.
      Interpretation: both models take the same number of steps of the same size on the same mini-batches.

    Examples:
      >>> fd.simulate(ditto(lam=0.5, aggregator=krum()), evaluate_clients=True, ...)
    """

    lam: Scalar = 0.1
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("lam", self.lam, 0.0)

    def own(self, params: Params, layers: Params) -> Params:
        del layers
        return params

    def trained(self, w: Any) -> Params:
        return w.shared

    def own_model(self, params: Params, own: Params) -> Params:
        del params
        return own

    def direction(self, grad_fn: GradFn, w: Any, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Any, Any]:
        theta, v = downlink.start, w.own
        global_gradient = grad_fn(w, batch).shared
        own_gradient = grad_fn(ClientParams(v, v), batch).shared
        pulled = jax.tree.map(lambda g, v, theta: g + self.lam * (v - theta), own_gradient, v, theta)
        return ClientParams(global_gradient, pulled), carry
