"""FedProx: local SGD held near its start point."""

from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.types import ClientRule


def fedprox(mu: Any = 0.2) -> ClientRule:
    """Adds a proximal term: ``w -= eta (grad f_m(w) + mu (w - theta))``.

    Args:
      mu: strength of the proximal term, >= 0; 0 is :func:`~fedjax_drag.clients.sgd`. Papers: 0.2 (DRAG,
        BR-DRAG), 0.1 (TACO).

    Raises:
      ValueError: if ``mu`` is negative.

    References:
      Li et al., Federated optimization in heterogeneous networks, 2020.
    """
    checks.in_range("mu", mu, 0.0)

    def direction(grad_fn, w, carry, downlink, batch):
        pulled = jax.tree.map(lambda g, x, x0: g + mu * (x - x0), grad_fn(w, batch), w, downlink.start)
        return pulled, carry

    return ClientRule(begin=lambda downlink: (), direction=direction, report=lambda *_: ())
