"""FedNTD: distillation of what the global model knows of the classes that are not the label."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.clients._sgd import sgd
from fedjax_drag.types import Batch, Downlink, Examined, Scalar


class fedntd(sgd):
    """Keeps the local model's predictions of the classes that are not the label close to the global model's.

    ::

        loss = loss_m(w) + beta sum_{c != y} q_g(c) log(q_g(c) / q(c));   w -= eta grad loss

    ``q`` and ``q_g`` are the softmax of the logits over ``temperature``, without that of the label ``y``, of the
    client's model and of the global model from which the pass began. A step costs a forward pass more.

    Args:
      beta: weight of the distillation, >= 0; 0 is :func:`~fedjax_drag.clients.sgd`. Paper: 1.
      temperature: > 0. Paper: 1.

    Raises:
      ValueError: if an argument is out of range; when a run is traced, if examples do not have one label each.

    References:
      Lee et al., Preservation of the global knowledge by not-true distillation in federated learning, NeurIPS 2022.
      Interpretation: the global model runs in evaluation, with the server's statistics.
    """

    beta: Scalar = 1.0
    temperature: Scalar = 1.0

    def check(self) -> None:
        checks.in_range("beta", self.beta, 0.0)
        checks.positive("temperature", self.temperature)

    def loss(self, examined: Examined, carry: Any, downlink: Downlink, batch: Batch) -> jax.Array:
        del carry
        if examined.class_counts is None:
            raise ValueError("client=fedntd: needs one label for each example; must be used for classification")
        known = examined.predict(downlink.start).outputs
        not_true = jnp.arange(known.shape[-1]) != batch.y[:, None]
        log_q, log_q_g = (self._log_softmax(logits, not_true) for logits in (examined.outputs, known))
        distillation = jnp.where(not_true, jnp.exp(log_q_g) * (log_q_g - log_q), 0.0).sum(-1)
        return examined.loss(examined.outputs, batch.y) + self.beta * distillation

    def _log_softmax(self, logits: jax.Array, not_true: jax.Array) -> jax.Array:
        """Over the classes that are not the label; 0 at the label."""
        scaled = logits / self.temperature
        return jnp.where(not_true, scaled - jax.nn.logsumexp(scaled, axis=-1, keepdims=True, where=not_true), 0.0)
