"""FedProx with TACO's coefficients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.algorithms._taco_coefficients import coefficients, initial_alpha, latest
from fedjax_drag.algorithms._two_sided import TwoSided, apply_screened, with_metrics
from fedjax_drag.types import Aggregator, Batch, Downlink, GradFn, Params, Scalar, State, Uplink


class TailoredFedproxState(NamedTuple):
    """State of :func:`tailored_fedprox`.

    Attributes:
      aggregator: state of the aggregation rule.
      alpha: ``alpha_m`` of each client's last participation ``[M]``.
    """

    aggregator: State
    alpha: jax.Array

    @property
    def metrics(self) -> dict[str, jax.Array]:
        """Those of the aggregation rule, and ``alpha``."""
        return self.aggregator.metrics


class tailored_fedprox(TwoSided):
    """FedProx whose term is stronger for clients whose last update agreed less with the mean.

    ::

        client:  w -= eta (grad f_m(w) + mu (1 - alpha_m) (w - theta))
        server:  theta += mean g_m;   alpha_m <- (1 - ||g_m|| / sum_j ||g_j||) max(0, cos(g_m, mean g))

    ``alpha_m`` starts at 0.1 and is that of the client's last participation. It affects the clients only: the server's
    weights are those of ``aggregator``. Plain FedProx is
    ``from_aggregator(aggregator, client=fedprox(mu))``.

    Assumes nothing of the local step: a ``local_optimizer``, its state kept or not, changes the deltas alone.

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds a coefficient for
        each.
      mu: strength of the proximal term, >= 0; 0 is the plain aggregation rule. Paper: 0.1.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      There is no message ``aux``. Metrics, beside the rule's: ``alpha`` (new; 0 where a client does not count). The
      coefficients compare with the plain mean, which ``aggregator`` does not protect: malicious clients can make the
      others' proximal terms as strong as ``mu``, no stronger.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction, Fig. 6.
      Interpretation: the coefficient is multiplied by ``1 - alpha_m``, not replaced by it.
    """

    num_clients: int | None = None
    mu: Scalar = 0.1
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("mu", self.mu, 0.0)

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | {"client_ids"}

    def init(self, params: Params) -> TailoredFedproxState:
        inner = with_metrics(self.rule.init(params), alpha=jnp.zeros(0))
        return TailoredFedproxState(inner, initial_alpha(self.clients))

    def broadcast(self, params: Params, state: TailoredFedproxState, client_ids: jax.Array) -> Downlink:
        return Downlink(start=params, own=self.mu * (1 - state.alpha[client_ids]))

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        def pulled(g: jax.Array, w: jax.Array, theta: jax.Array) -> jax.Array:
            return (g + downlink.own * (w - theta)).astype(g.dtype)  # own: mu (1 - alpha_m)

        return jax.tree.map(pulled, grad_fn(w, batch), w, downlink.start), carry

    def aggregate(
        self, params: Params, uplink: Uplink, state: TailoredFedproxState, *, client_ids: jax.Array, **extras: Any
    ) -> tuple[Params, TailoredFedproxState]:
        extras["client_ids"] = client_ids
        moved, inner, counted = apply_screened(self.rule, params, uplink, state.aggregator, **extras)
        alpha = coefficients(uplink.delta, counted)
        after = latest(state.alpha, client_ids, alpha, counted)
        return moved, TailoredFedproxState(with_metrics(inner, alpha=alpha), after)
