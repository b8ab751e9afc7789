"""DRAG: divergence-based adaptive aggregation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.weighted import Clients, Step, WeightedAggregator, Weights
from fedjax_drag.types import Params, Scalar


class DragState(NamedTuple):
    """State of :func:`drag`.

    Attributes:
      reference: ``r_t`` for the coming round, like ``params``; unused in the first.
      round: number of rounds so far.
      metrics: of the last round.
    """

    reference: Params
    round: jax.Array
    metrics: dict[str, jax.Array]


class drag(WeightedAggregator):
    """Drags every delta towards a moving reference direction before averaging.

    With the reference ``r_t = (1 - alpha) r_{t-1} + alpha Delta_{t-1}``, ``r_0 = mean g``::

        lambda_m = c (1 - cos(g_m, r_t))                                   in [0, 2c]
        v_m = (1 - lambda_m) g_m + lambda_m (||g_m|| / ||r_t||) r_t
        Delta_t = mean v_m,   theta += Delta_t

    Args:
      c: strength of the correction, >= 0; 0 is :func:`fedavg`. Papers: 0.25 (Dirichlet 0.1), 0.1 (0.5).
      alpha: share of the newest aggregate in the reference, in [0, 1].
      divergence: ``"cosine"`` or ``"angle"`` (``lambda = c (2/pi) arccos(cos)``).

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks, in the first round twice, for
      ``r_0`` and for ``Delta_0``. Metrics: ``divergence`` (``lambda_m``), ``cosine`` to
      ``r_t``, ``weight`` ``(1 - lambda_m)/S``, the coefficient of ``g_m`` in ``Delta_t``.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      0: one long delta moves it anywhere.

    Cost:
      3 passes over the deltas.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Algorithm 1; Zhu et
      al., DRAG, equations 6 to 11. Interpretation: the latter prints ``theta - Delta``, a slip of the sign. In the
      first round the same deltas serve for ``r_0`` and ``v_m``. A zero reference has cosine 0 with everything and adds
      nothing.
    """

    c: Scalar = 0.25
    alpha: Scalar = 0.25
    divergence: str = "cosine"

    has_reference = has_first_pass = True

    def check(self) -> None:
        checks.in_range("c", self.c, 0.0)
        checks.in_range("alpha", self.alpha, 0.0, 1.0)
        checks.one_of("divergence", self.divergence, ("cosine", "angle"))

    def init(self, params: Params) -> DragState:
        return DragState(tree.zeros_like(params), jnp.zeros((), int), empty_metrics("divergence"))

    def reference(self, state: DragState, **_: Any) -> Params:
        return state.reference

    def weigh(self, clients: Clients, state: DragState, **_: Any) -> Weights:
        del state
        lam = self.c * (1 - clients.cosine if self.divergence == "cosine" else 2 / jnp.pi * clients.angle)  # lambda_m
        return Weights(own=1 - lam, along=lam, metrics={"divergence": lam})  # v_m

    def after(self, step: Step, state: DragState, **_: Any) -> tuple[Step, DragState]:
        mixed = lambda r, delta: ((1 - self.alpha) * r + self.alpha * delta).astype(r.dtype)  # r_{t+1}
        following = jax.tree.map(mixed, state.reference, step.update)
        return step, state._replace(reference=following, round=state.round + 1)

    def needs_first_pass(self, state: DragState) -> jax.Array:
        return state.round == 0

    def absorb_mean(self, mean: Params, state: DragState, **_: Any) -> DragState:  # r_0
        return state._replace(reference=jax.tree.map(lambda m, r: m.astype(r.dtype), mean, state.reference))
