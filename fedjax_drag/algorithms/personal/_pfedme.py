"""pFedMe."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import jax

from fedjax_drag import checks, tree
from fedjax_drag.algorithms.personal._personal import PersonalMethod
from fedjax_drag.types import Aggregator, Batch, ClientParams, Downlink, GradFn, Params, Scalar


class pfedme(PersonalMethod):
    """Every client's model minimises its loss near the global one, which follows the Moreau envelopes of the losses.

    ::

        client:  theta_m -= inner_step_size (grad f_m(theta_m) + lam (theta_m - w)),  inner_steps times
                 w -= eta lam (w - theta_m)
        server:  theta += mean g_m                     g_m = w - theta
        own:     theta_m

    Assumes that the local steps follow ``lam (w - theta_m)``, the gradient of the envelope.

    Args:
      lam: strength of the pull to the global model, > 0. Its authors take 15 and 30.
      inner_steps: K, steps on a mini-batch towards the minimum, at least 1.
      inner_step_size: of these, > 0; must be below ``2 / lam``, or the steps diverge.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`. The paper's beta is the step size of its server optimizer.

    Notes:
      Metrics: those of ``aggregator``. ``inner_steps`` gradients a local step; a model is kept for every client.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Dinh et al., Personalized federated learning with Moreau envelopes, NeurIPS 2020, Algorithm 1. Interpretation:
      the inner steps begin at the global model in the first local step of a round, and where they ended before in
      the others, as in its authors' code.
    """

    lam: Scalar = 15.0
    inner_steps: int = 5
    inner_step_size: Scalar = 0.05
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.positive("lam", self.lam)
        checks.count("inner_steps", self.inner_steps, 1)
        checks.positive("inner_step_size", self.inner_step_size)

    def own(self, params: Params, layers: Params) -> Params:
        del layers
        return params

    def trained(self, w: Any) -> Params:
        return w.shared

    def keep(self, downlink: Downlink, w_end: Any, carry: Any, total_step_size: jax.Array) -> Params:
        return carry

    def own_model(self, params: Params, own: Params) -> Params:
        del params
        return own

    def begin(self, downlink: Downlink) -> Params:
        return downlink.start

    def direction(self, grad_fn: GradFn, w: Any, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Any, Any]:
        def nearer(t: jax.Array, g: jax.Array, w: jax.Array) -> jax.Array:
            return (t - self.inner_step_size * (g + self.lam * (t - w))).astype(t.dtype)

        theta = carry
        for _ in range(self.inner_steps):
            theta = jax.tree.map(nearer, theta, grad_fn(ClientParams(theta, theta), batch).shared, w.shared)
        envelope = jax.tree.map(lambda w, t: self.lam * (w - t), w.shared, theta)
        return ClientParams(envelope, tree.zeros_like(w.own)), theta
