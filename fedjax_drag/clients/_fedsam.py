"""FedSAM: local steps towards flat minima."""

from typing import Any

import jax

from fedjax_drag import checks, tree
from fedjax_drag.types import Batch, ClientRule, Downlink, GradFn, Params, Scalar


class fedsam(ClientRule):
    """Follows the gradient at a point uphill of the model, on the same mini-batch.

    ::

        g = grad f_m(w);   w -= eta grad f_m(w + rho g / ||g||)

    The norm is that of the whole model; where it is 0 the gradient is taken at ``w``. A step costs two gradients.

    Args:
      rho: distance uphill, >= 0; 0 is :func:`~fedjax_drag.clients.sgd`. 0.05 is what Foret et al. recommend.

    Raises:
      ValueError: if ``rho`` is negative.

    References:
      Qu et al., Generalized federated learning via sharpness aware minimization, 2022, Algorithm 1 (FedSAM);
      Foret et al., Sharpness-aware minimization for efficiently improving generalization, 2021.
    """

    rho: Scalar = 0.05

    def check(self) -> None:
        checks.in_range("rho", self.rho, 0.0)

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        del downlink
        gradient = grad_fn(w, batch)
        ascent = self.rho * tree.inverse(tree.norm(gradient))
        uphill = jax.tree.map(lambda x, g: (x + ascent * g).astype(x.dtype), w, gradient)
        return grad_fn(uphill, batch), carry
