"""MOON: a contrastive loss between the representations of models."""

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.clients._sgd import sgd
from fedjax_drag.kernels.norms import unit_rows
from fedjax_drag.types import Batch, Downlink, Examined, Params, Scalar


class moon(sgd):
    """Draws a client's representations towards the global model's, and away from its own previous model's.

    ::

        loss = loss_m(w) + mu l_con;   w -= eta grad loss
        l_con = -log(exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)))

    ``z``, ``z_glob`` and ``z_prev`` are the representations of an example by the client's model, by the global model
    from which the pass began, and by the client's model at the end of its last pass. Before its first pass a client's
    previous model is the initial one, so that the first round is that of :func:`~fedjax_drag.clients.sgd`. A step
    costs two forward passes more.

    Args:
      mu: weight of the contrastive loss, >= 0; 0 is :func:`~fedjax_drag.clients.sgd`. Paper: the best of 0.1, 1, 5
        and 10.
      temperature: ``tau``, > 0. Paper: 0.5.

    Returns:
      A :class:`~fedjax_drag.types.ClientRule` with ``keeps_carry``: the state holds a model for every client of the
      federation (``client_state="host"`` keeps it out of the device). A model's representation is that of
      :class:`~fedjax_drag.types.Prediction`.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Li, He and Song, Model-contrastive federated learning, CVPR 2021, Algorithm 1. **[reading]** The representation is
      the input of the model's last dense layer, as in the authors' code, whose models have two dense layers more before
      it, the projection head; the models of this package have none. The global and the previous model run in
      evaluation, with the server's statistics. A client that takes part for the first time, which the paper leaves
      open, contrasts with the initial model; in the authors' code with a random one of its own.
    """

    mu: Scalar = 1.0
    temperature: Scalar = 0.5

    def check(self) -> None:
        checks.in_range("mu", self.mu, 0.0)
        checks.positive("temperature", self.temperature)

    @property
    def keeps_carry(self) -> bool:
        return True

    def begin(self, downlink: Downlink) -> Params:
        return downlink.start

    def carried(self, w_end: Params, carry: Params) -> Params:
        del carry
        return w_end

    def loss(self, examined: Examined, carry: Params, downlink: Downlink, batch: Batch) -> jax.Array:
        z = examined.representation
        z_glob, z_prev = (examined.predict(w).representation for w in (downlink.start, carry))
        agreement = jnp.stack([cosine(z, z_glob), cosine(z, z_prev)]) / self.temperature
        contrastive = jax.nn.logsumexp(agreement, axis=0) - agreement[0]
        return examined.loss(examined.outputs, batch.y) + self.mu * contrastive


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """The cosines of the rows of ``a`` and ``b``; 0, with gradient 0, where one of them is zero."""
    return (unit_rows(a) * unit_rows(b)).sum(-1)
