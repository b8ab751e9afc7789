"""APFL."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.algorithms.personal._personal import PersonalMethod
from fedjax_drag.types import Aggregator, Batch, ClientParams, Downlink, GradFn, Params, Scalar


class Mixture(NamedTuple):
    """What a client of :func:`apfl` keeps.

    Attributes:
      v: its local model.
      alpha: the share of that in its own model, scalar in [0, 1].
    """

    v: Params
    alpha: jax.Array


class MixturePass(NamedTuple):
    """What a client of :func:`apfl` carries from step to step.

    Attributes:
      steps: taken so far, int32 scalar.
      alpha: at the start of the pass.
      slope: of the loss in alpha, at the first step.
    """

    steps: jax.Array
    alpha: jax.Array
    slope: jax.Array


class apfl(PersonalMethod):
    """Every client mixes a local model with the global one, and may learn how much of each.

    ::

        client:  w   -= eta grad f_m(w)
                 v_m -= eta alpha_m grad f_m(u_m),     u_m = alpha_m v_m + (1 - alpha_m) w
                 alpha_m -= eta <v_m - w, grad f_m(u_m)>,  once a round, cut to [0, 1]
        server:  theta += mean g_m                     g_m = w - theta
        own:     alpha_m v_m + (1 - alpha_m) theta

    Assumes plain local steps where ``adaptive``; else nothing of them.

    Args:
      alpha: share of the local model, in [0, 1], at the start if ``adaptive``; 0 is the plain rule, 1
        :func:`local_only` beside it.
      adaptive: whether clients learn their shares.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      Metrics: those of ``aggregator``. Two gradients a local step; a model and a number are kept for every client.

    Raises:
      ValueError: if ``alpha`` is out of range.

    References:
      Deng et al., Adaptive personalized federated learning, 2020, Algorithm 1. Interpretation: alpha
      takes its step at the end of a round, along the slope on the round's first mini-batch and without the
      regularisation that its authors' code adds; the model of a client that was not drawn mixes with the newest
      global model.
    """

    alpha: Scalar = 0.5
    adaptive: bool = False
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("alpha", self.alpha, 0.0, 1.0)

    def own(self, params: Params, layers: Params) -> Mixture:
        del layers
        return Mixture(params, jnp.asarray(self.alpha, jnp.float32))

    def trained(self, w: Any) -> Params:
        return w.shared

    def own_model(self, params: Params, own: Mixture) -> Params:
        return _mixed(own.alpha, own.v, params)

    def begin(self, downlink: Downlink) -> MixturePass:
        del downlink
        return MixturePass(jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(()))

    def direction(self, grad_fn: GradFn, w: Any, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Any, Any]:
        first = carry.steps == 0
        alpha = jnp.where(first, w.own.alpha, carry.alpha)
        global_gradient = grad_fn(w, batch).shared
        gradient = grad_fn(ClientParams(_mixed(alpha, w.own.v, w.shared), w.own), batch).shared
        of_v = jax.tree.map(lambda g: (alpha * g).astype(g.dtype), gradient)
        products = jax.tree.map(lambda v, w, g: ((v - w) * g).sum(dtype=jnp.float32), w.own.v, w.shared, gradient)
        slope = jnp.where(first, sum(jax.tree.leaves(products)), carry.slope)
        own = Mixture(of_v, jnp.zeros(()))
        return ClientParams(global_gradient, own), MixturePass(carry.steps + 1, alpha, slope)

    def keep(self, downlink: Downlink, w_end: Any, carry: MixturePass, total_step_size: jax.Array) -> Mixture:
        step_size = total_step_size / carry.steps if self.adaptive else 0.0
        return w_end.own._replace(alpha=jnp.clip(carry.alpha - step_size * carry.slope, 0.0, 1.0))


def _mixed(alpha: jax.Array, v: Params, w: Params) -> Params:
    return jax.tree.map(lambda v, w: (alpha * v + (1 - alpha) * w).astype(w.dtype), v, w)
