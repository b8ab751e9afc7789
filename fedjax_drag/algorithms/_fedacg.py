"""FedACG: clients start from where the server's momentum is about to lead."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import server_side
from fedjax_drag.clients import fedprox
from fedjax_drag.types import Aggregator, Algorithm, Downlink, Params, State


class FedACGState(NamedTuple):
    """State of :func:`fedacg`.

    Attributes:
      aggregator: state of the aggregation rule, its metrics apart.
      momentum: the server's momentum ``m``, like ``params``.
      metrics: those of the aggregation rule, and the norm of the momentum.
    """

    aggregator: State
    momentum: Params
    metrics: dict[str, jax.Array]


def fedacg(lam: Any = 0.85, beta: Any = 0.2, aggregator: Aggregator | None = None) -> Algorithm:
    """Sends the parameters that the momentum leads to, and holds the clients near them.

    ::

        client:  from phi = theta + lam m:   w -= eta (grad f_m(w) + beta (w - phi));   g_m = w - phi
        server:  m <- lam m + mean g_m;   theta += m

    The momentum starts at zero. With ``lam = 0`` this is :func:`~fedjax_drag.clients.fedprox` under the plain
    aggregation rule, with ``beta = 0`` as well the plain rule.

    Args:
      lam: share of the momentum that is kept, in [0, 1). Paper of BR-DRAG: 0.85.
      beta: strength of the proximal term, >= 0. Papers: 0.2 (BR-DRAG), 0.001 (TACO).
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`. It is applied at ``phi``, where the deltas start.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. Metrics: those of ``aggregator``, and the scalar ``momentum_norm``
      ``||m||``. There is no message ``aux``: what clients send reaches the parameters and the momentum through
      ``aggregator`` only, but what gets past it stays in the momentum for about ``1 / (1 - lam)`` rounds. It sums as
      deltas come if ``aggregator`` can.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Kim, Kim and Han, Communication-efficient federated learning with accelerated client gradient, 2024; as
      given by Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section
      VI. **[reading]** There the client's step has a norm, a number, where the vector ``w - phi`` belongs.
      **[reading]** Clients start at ``phi``, as in the original; Algorithm 1 of Liu et al., TACO: Tackling
      over-correction in federated learning with tailored adaptive correction, starts them at ``theta`` and only pulls
      them towards the look-ahead. In the loss the term is ``beta/2 ||w - phi||^2``; its authors' code has no 1/2, so
      that a weight there is a ``beta`` of twice as much here.
    """
    checks.in_range("lam", lam, 0.0, 1.0, open_high=True)
    checks.in_range("beta", beta, 0.0)
    rule = aggregator or fedavg()

    def lookahead(params, state):
        return tree.move(params, tree.scale(lam, state.momentum))

    def init(params):
        inner = rule.init(params)
        metrics = {**inner.metrics, "momentum_norm": jnp.zeros(())}
        return FedACGState(inner._replace(metrics={}), tree.zeros_like(params), metrics)

    def broadcast(params, state, client_ids):
        del client_ids
        return Downlink(start=lookahead(params, state))

    def own(uplink, state, counted, **_):
        del uplink, state, counted
        return (), ()

    def close(params, state, outcome, **_):
        # The rule has moved theta + lam m by the mean: what it moved theta by is the new momentum.
        after = outcome.moved, tree.subtract(outcome.moved, params)
        moved, momentum = tree.where(outcome.counted.any(), after, (params, state.momentum))
        metrics = {**outcome.inner.metrics, "momentum_norm": tree.norm(momentum)}
        return moved, FedACGState(outcome.inner._replace(metrics={}), momentum, metrics)

    aggregate, sums = server_side(rule, own, close, start=lookahead)
    return Algorithm(fedprox(beta), init, broadcast, aggregate, rule.needs, rule.split, sums=sums)
