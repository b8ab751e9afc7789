"""FedLC: logits calibrated by how many examples of each class the client has."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.clients._sgd import sgd
from fedjax_drag.types import Batch, Downlink, Examined, Scalar


class fedlc(sgd):
    """Lowers the logits of classes of which the client has few examples, before the run's loss.

    ::

        loss = -log(exp(f_y - tau n_y^(-1/4)) / sum_i exp(f_i - tau n_i^(-1/4)));   w -= eta grad loss

    ``f`` are the logits of an example with label ``y``, ``n_i`` is the client's number of examples of class ``i``. A
    label has to win by a margin that is the larger the rarer it is at the client, and the logits of classes that the
    client lacks are hardly pushed down. The equation is that of cross-entropy; another ``loss`` of the run takes the
    calibrated logits.

    Args:
      tau: strength of the calibration, >= 0; 0 is :func:`~fedjax_drag.clients.sgd`.

    Raises:
      ValueError: if ``tau`` is negative; when a run is traced, if examples do not have one label each.

    References:
      Zhang et al., Federated learning with label distribution skew via logits calibration, ICML 2022. **[reading]** The
      sum is over all classes, as in the cross-entropy that it calibrates: without ``i = y``, as the paper prints it,
      ``tau = 0`` would be another loss. A class that a client lacks counts as 1e-8 examples, a margin of ``100 tau``;
      in the limit it would have no part in the sum.
    """

    tau: Scalar = 1.0

    def check(self) -> None:
        checks.in_range("tau", self.tau, 0.0)

    def loss(self, examined: Examined, carry: Any, downlink: Downlink, batch: Batch) -> jax.Array:
        del carry, downlink
        if examined.class_counts is None:
            raise ValueError("client=fedlc: needs one label for each example; must be used for classification")
        margin = self.tau * jnp.maximum(examined.class_counts, 1e-8) ** -0.25
        return examined.loss(examined.outputs - margin, batch.y)
