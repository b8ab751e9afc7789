"""FedProx with TACO's coefficients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import apply_screened, with_metrics
from fedjax_drag.algorithms._taco_coefficients import coefficients, initial_alpha, remember
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, State


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


def tailored_fedprox(num_clients: int, mu: Any = 0.1, aggregator: Aggregator | None = None) -> Algorithm:
    """FedProx that holds a client back the more, the less its last update agreed with the mean.

    ::

        client:  w -= eta (grad f_m(w) + mu (1 - alpha_m) (w - theta))
        server:  theta += mean g_m;   alpha_m <- (1 - ||g_m|| / sum_j ||g_j||) max(0, cos(g_m, mean g))

    ``alpha_m`` starts at 0.1 and stays that of the client's last participation. It changes the clients alone: the
    server's weights are those of ``aggregator``. Plain FedProx is
    ``from_aggregator(aggregator, client=fedprox(mu))``.

    Args:
      num_clients: M, clients in the federation; the state holds a coefficient for each.
      mu: strength of the proximal term, >= 0; 0 is the plain aggregation rule. Paper: 0.1.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm` whose message has no ``aux``. Metrics, beside the rule's: ``alpha``
      (new; 0 where a client does not count). The coefficients compare with the plain mean, which ``aggregator``
      does not protect: malicious clients can make the others' proximal terms as strong as ``mu``, no stronger.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction, Fig. 6.
      Reading: the coefficient is multiplied by ``1 - alpha_m``, not replaced by it.
    """
    checks.count("num_clients", num_clients, 1)
    checks.in_range("mu", mu, 0.0)
    rule = aggregator or fedavg()

    def init(params):
        return TailoredFedproxState(with_metrics(rule.init(params), alpha=jnp.zeros(0)), initial_alpha(num_clients))

    def broadcast(params, state, client_ids):
        return Downlink(start=params, own=mu * (1 - state.alpha[client_ids]))

    def direction(grad_fn, w, carry, downlink, batch):
        def pulled(g, x, x0):
            return (g + downlink.own * (x - x0)).astype(g.dtype)

        return jax.tree.map(pulled, grad_fn(w, batch), w, downlink.start), carry

    def aggregate(params, uplink, state, *, client_ids, **extras):
        moved, inner, counted = apply_screened(rule, params, uplink, state.aggregator, client_ids=client_ids, **extras)
        newest = coefficients(uplink.delta, counted)
        inner = with_metrics(inner, alpha=newest)
        return moved, TailoredFedproxState(inner, remember(state.alpha, client_ids, newest, counted))

    client = ClientRule(begin=lambda downlink: (), direction=direction, report=lambda *_: ())
    return Algorithm(client, init, broadcast, aggregate, rule.needs | {"client_ids"}, rule.split)
