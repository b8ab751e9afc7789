"""FedACG: clients start at the point to which the server's momentum leads."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.algorithms._inner import Contribution, Outcome, apart, rule_or_mean, server_side
from fedjax_drag.clients import fedprox
from fedjax_drag.types import Aggregator, Algorithm, Downlink, Params, State


class FedACGState(NamedTuple):
    """State of :func:`fedacg`.

    Attributes:
      aggregator: state of the aggregation rule, without its metrics.
      momentum: the server's momentum ``m``, like ``params``.
      metrics: those of the aggregation rule, and the norm of the momentum.
    """

    aggregator: State
    momentum: Params
    metrics: dict[str, jax.Array]


def fedacg(lam: Any = 0.85, beta: Any = 0.2, aggregator: Aggregator | None = None) -> Algorithm:
    """Starts clients at the point to which the server's momentum leads, and holds them near it.

    ::

        client:  from phi = theta + lam m:   w -= eta (grad f_m(w) + beta (w - phi));   g_m = w - phi
        server:  m <- lam m + mean g_m;   theta += m

    The momentum starts at zero. With ``lam = 0`` this is :func:`~fedjax_drag.clients.fedprox` under the plain
    aggregation rule, with ``beta = 0`` as well the plain rule.

    Assumes nothing of the local step: a ``local_optimizer``, its state kept or not, changes the deltas alone.

    Args:
      lam: share of the momentum that is kept, in [0, 1). Paper of BR-DRAG: 0.85.
      beta: strength of the proximal term, >= 0. Papers: 0.2 (BR-DRAG), 0.001 (TACO).
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`. It is applied at ``phi``, where the deltas start.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. Metrics: those of ``aggregator``, and the scalar ``momentum_norm``
      ``||m||``. There is no message ``aux``: what clients send reaches the parameters and the momentum through
      ``aggregator`` only, but an error that passes it stays in the momentum for about ``1 / (1 - lam)`` rounds. Deltas
      can be summed in chunks if ``aggregator`` can.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Kim, Kim and Han, Communication-efficient federated learning with accelerated client gradient, 2024; as
      given by Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section
      VI. **[reading]** The latter prints a norm, a number, in the client's step in place of the vector ``w - phi``.
      **[reading]** Clients start at ``phi``, as in the original; Algorithm 1 of Liu et al., TACO: Tackling
      over-correction in federated learning with tailored adaptive correction, starts them at ``theta`` and only pulls
      them towards the look-ahead. In the loss the term is ``beta/2 ||w - phi||^2``; its authors' code has no 1/2, so
      that a weight there is a ``beta`` of twice as much here.
    """
    checks.in_range("lam", lam, 0.0, 1.0, open_high=True)
    checks.in_range("beta", beta, 0.0)
    rule = rule_or_mean(aggregator)

    def init(params: Params) -> FedACGState:
        inner, metrics = apart(rule.init(params), momentum_norm=jnp.zeros(()))
        return FedACGState(inner, tree.zeros_like(params), metrics)

    def lookahead(params: Params, state: FedACGState) -> Params:
        return tree.move(params, tree.scale(lam, state.momentum))  # phi = theta + lam m

    def broadcast(params: Params, state: FedACGState, client_ids: jax.Array) -> Downlink:
        del client_ids
        return Downlink(start=lookahead(params, state))

    aggregate, sums = server_side(rule, lambda *_, **__: Contribution(), _close, start=lookahead)
    return Algorithm(fedprox(beta), init, broadcast, aggregate, rule.needs, rule.split, sums=sums)


def _close(params: Params, state: FedACGState, outcome: Outcome, **_: Any) -> tuple[Params, FedACGState]:
    # The rule has moved theta + lam m by the mean: what it moved theta by is the new momentum.
    now = outcome.moved, tree.subtract(outcome.moved, params)
    theta, m = tree.where(outcome.counted.any(), now, (params, state.momentum))
    inner, metrics = apart(outcome.inner, momentum_norm=tree.norm(m))
    return theta, FedACGState(inner, m, metrics)
