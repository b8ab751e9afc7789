"""FedProx: local SGD held near its start point."""

from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.types import Batch, ClientRule, Downlink, GradFn, Params, Scalar


class fedprox(ClientRule):
    """Adds a proximal term: ``w -= eta (grad f_m(w) + mu (w - theta))``.

    Args:
      mu: strength of the proximal term, >= 0; 0 is :func:`~fedjax_drag.clients.sgd`. Papers: 0.2 (DRAG,
        BR-DRAG), 0.1 (TACO).

    Raises:
      ValueError: if ``mu`` is negative.

    References:
      Li et al., Federated optimization in heterogeneous networks, 2020.
    """

    mu: Scalar = 0.2

    def check(self) -> None:
        checks.in_range("mu", self.mu, 0.0)

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        def pulled(g: jax.Array, w: jax.Array, theta: jax.Array) -> jax.Array:
            return g + self.mu * (w - theta)

        return jax.tree.map(pulled, grad_fn(w, batch), w, downlink.start), carry
