"""Local SGD along a momentum that every client keeps from round to round."""

from typing import Any

import jax

from fedjax_drag import checks, tree
from fedjax_drag.types import Batch, ClientRule, Downlink, GradFn, Params, Scalar


class momentum_sgd(ClientRule):
    """Follows an average of the client's own past gradients, which it keeps from round to round.

    ::

        m_i <- beta m_i + (1 - beta) grad f_i(w);   w -= eta m_i

    With one local step a client's delta is ``-eta m_i``: it sends its momentum in place of its gradient, the worker
    momentum of Byzantine-robust learning. Averages over rounds differ less between benign clients than mini-batch
    gradients do, which leaves an attack less room, and a robust rule sees an attack that lasts. One step on one
    mini-batch a round (``local_steps=1``) is the setting of the papers; with more steps the momentum goes on from step
    to step, and the delta is ``-eta`` times the sum of its values.

    Args:
      beta: share of the past, in [0, 1); 0 is :func:`~fedjax_drag.clients.sgd`. Papers: 0.9 and 0.99.

    Returns:
      A :class:`~fedjax_drag.types.ClientRule` with ``keeps_carry``: the momentum starts at 0 for every client, and a
      client that is not in the cohort, or whose momentum would not be finite, keeps it unchanged. It takes the memory
      of the parameters for every client of the federation (``client_state="host"`` keeps it out of the device). As
      ``root_client`` it starts at 0 in every round: a root delta of one step is ``1 - beta`` of that of plain SGD, in
      the same direction.

    Raises:
      ValueError: if ``beta`` is out of range.

    References:
      Karimireddy, He and Jaggi, Learning from history for Byzantine robust optimization, 2021 (worker momentum); with
      the conventions of ByzFL (González et al., ByzFL: Research framework for robust federated learning, 2025): the
      gradient counts ``1 - beta``, and ``m_i`` starts at 0 without a correction for it. Interpretation: in the papers
      every worker takes part in every round; here a client that is not in the cohort keeps its momentum as it is.
    """

    beta: Scalar = 0.9

    def check(self) -> None:
        checks.in_range("beta", self.beta, 0.0, 1.0, open_high=True)

    @property
    def keeps_carry(self) -> bool:
        return True

    def begin(self, downlink: Downlink) -> Params:
        return tree.zeros_like(downlink.start)

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        del downlink

        def averaged(m: jax.Array, g: jax.Array) -> jax.Array:
            return (self.beta * m + (1 - self.beta) * g).astype(m.dtype)

        momentum = jax.tree.map(averaged, carry, grad_fn(w, batch))
        return momentum, momentum
