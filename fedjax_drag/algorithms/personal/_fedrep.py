"""FedRep."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.algorithms.personal._layered import LayeredMethod
from fedjax_drag.types import Aggregator, Batch, ClientParams, Downlink, GradFn


class fedrep(LayeredMethod):
    """Averages a representation; every client first fits its head to it, then takes steps on the representation alone.

    ::

        client:  h_m -= eta grad_h f_m(w, h_m)         the first head_steps local steps
                 w   -= eta grad_w f_m(w, h_m)         the others
        server:  theta += mean g_m                     g_m = w - theta
        own:     (theta, h_m)

    Assumes local steps that are 0 where the gradient is: a ``local_optimizer`` with momentum goes on with the half that
    waits.

    Args:
      layers: patterns of the paths of the head, which clients keep, such as ``"Dense_1"``.
      head_steps: local steps on the head, at least 1, and fewer than a client takes in all; with as many the
        representation stays as it is. Or, in (0, 1), their share: 0.5 with ``local_epochs=2`` is an epoch of each.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      As of :func:`fedper`.

    Raises:
      ValueError: as of :func:`fedper`, or if ``head_steps`` is neither a positive integer nor in (0, 1).

    References:
      Collins et al., Exploiting shared representations for personalized federated learning, ICML 2021, Algorithm 1.
      Interpretation: the steps of both halves have the same size.
    """

    layers: str | Sequence[str]
    head_steps: int | float
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        if isinstance(self.head_steps, float):
            checks.in_range("head_steps", self.head_steps, 0.0, 1.0, open_low=True, open_high=True)
        else:
            checks.count("head_steps", self.head_steps, 1)

    def begin(self, downlink: Downlink) -> jax.Array:
        del downlink
        return jnp.zeros((), jnp.int32)

    def direction(self, grad_fn: GradFn, w: Any, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Any, Any]:
        steps = self.head_steps * downlink.num_steps if isinstance(self.head_steps, float) else self.head_steps
        gradient, on_head = grad_fn(w, batch), carry < steps

        def only(moves: jax.Array, half: Any) -> Any:
            return jax.tree.map(lambda g: jnp.where(moves, g, 0), half)

        return ClientParams(only(~on_head, gradient.shared), only(on_head, gradient.own)), carry + 1
