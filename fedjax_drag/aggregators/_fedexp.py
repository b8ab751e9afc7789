"""FedExP: the step size that extrapolation along the average allows."""

from typing import Any

import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.screening import stateless
from fedjax_drag.ops.weighted import Clients, Kept, Step, WeightedAggregator, Weights
from fedjax_drag.types import Params, Scalar, State


class fedexp(WeightedAggregator):
    """Averages the deltas and steps the further, the more they disagree.

    ::

        eta_g = max(1, sum_m ||g_m||^2 / (2 S (||mean g||^2 + eps)))
        theta += eta_g mean g

    Args:
      eps: keeps the quotient small where the average nearly vanishes, > 0, in squared units of the deltas.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks. Metrics: ``server_step_size``
      (``eta_g``, scalar), ``weight`` ``eta_g / S``; from the whole stack also ``cosine`` to the average.

    Raises:
      ValueError: if ``eps`` is not positive.

    Breakdown point:
      0: one client moves it anywhere, and further than the plain mean

    Cost:
      3 passes over the deltas

    References:
      Jhunjhunwala et al., FedExP: Speeding up federated averaging via extrapolation, 2023. Squares of norms need not be
      representable, only their quotient; ``eta_g`` stops where the step would leave the range of float32.
    """

    eps: Scalar = 0.001

    def check(self) -> None:
        checks.positive("eps", self.eps)

    def init(self, params: Params) -> State:
        return stateless(server_step_size=0.0)(params)

    def weigh(self, clients: Clients, state: State, **_: Any) -> Weights:
        del clients, state
        return Weights(own=1.0)

    def after(self, step: Step, state: State, *, kept: Kept, **_: Any) -> tuple[Step, State]:
        share, length = step.metrics["weight"], tree.norm(step.update)  # 1/S, ||mean g||
        unit = tree.inverse(tree.norm((length, jnp.sqrt(self.eps))))
        root = unit * tree.norm(jnp.sqrt(share / 2) * kept.norm)  # its square is the quotient of the formula
        longest = jnp.sqrt(jnp.finfo(root.dtype).max / 2) * jnp.sqrt(tree.inverse(jnp.maximum(length, 1.0)))
        eta = jnp.square(jnp.clip(root, 1.0, longest))
        metrics = step.metrics | {"weight": eta * share, "server_step_size": eta}
        return Step(tree.scale(eta, step.update), metrics), state
