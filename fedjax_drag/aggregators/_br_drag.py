"""BR-DRAG: Byzantine-resilient DRAG, with a reference from the server's own root data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, kinds
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.weighted import Clients, Kept, WeightedAggregator, Weights
from fedjax_drag.types import Params, Scalar


class BrDragState(NamedTuple):
    """State of :func:`br_drag`.

    Attributes:
      metrics: of the last round.
      strength: the last round's ``c_t`` of an oracle; ``()`` without one.
    """

    metrics: dict[str, jax.Array]
    strength: Any = ()


class br_drag(WeightedAggregator):
    """Drags norm-matched deltas towards the server's reference ``r_t`` before averaging.

    ``r_t`` is the delta of a local pass over root data (extra ``root_delta``)::

        lambda_m = c_t (1 - cos(g_m, r_t))
        v_m = (1 - lambda_m) (||r_t|| / ||g_m||) g_m + lambda_m r_t
        theta += mean v_m

    For ``lambda_m`` in [0, 1] no ``v_m`` is longer than ``r_t``, so no client can outweigh the others.

    Args:
      c: strength of the correction, >= 0 (the paper: 0.5), or a schedule: a function of the round, such as
        those of optax (needs the extra ``round``).
      oracle: whether ``c_t = w / (w - x)``, within [1/2, 1], takes the place of ``c`` in rounds with malicious clients,
        w being their share in the cohort and x the sum of their cosines over S: the paper's Theorem 2. It needs the
        extra ``malicious``, which only a simulation knows.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``root_delta`` and also takes deltas in chunks. Metrics:
      ``divergence`` (``lambda_m``), ``cosine`` to ``r_t``, ``weight`` ``(1 - lambda_m) ||r_t|| / (||g_m|| S)``, the
      coefficient of ``g_m`` in the update.

    Raises:
      ValueError: if ``c`` is negative.

    Breakdown point:
      1: for c <= 1/2 the update is never longer than the root delta.

    Cost:
      3 passes over the deltas, and a local pass over root data.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning,
      Algorithm 2; Zhu et al., DRAG, equation 14. A zero delta contributes ``lambda_m r_t`` with cosine 0. Remark 3 of
      the latter says that a reversed delta is reversed back where ``lambda_m > 1``; as ``lambda_m <= 2c``, that takes
      ``c > 1/2``. With less, its part in ``v_m`` shrinks but is not turned around.
    """

    c: Scalar | Callable[[jax.Array], jax.Array] = 0.5
    oracle: bool = False

    has_reference = True
    length = "reference"

    def check(self) -> None:
        if not callable(self.c):
            checks.in_range("c", self.c, 0.0)

    @property
    def needs(self) -> frozenset[str]:
        scheduled, told = {"round"} if callable(self.c) else set(), {"malicious"} if self.oracle else set()
        return frozenset({"root_delta"} | scheduled | told)

    @property
    def has_first_pass(self) -> bool:
        return self.oracle

    def init(self, params: Params) -> BrDragState:
        del params
        return BrDragState(empty_metrics("divergence"), jnp.zeros(()) if self.oracle else ())

    def reference(self, state: BrDragState, *, root_delta: Params, **_: Any) -> Params:
        del state
        return root_delta

    def weigh(self, clients: Clients, state: BrDragState, **extras: Any) -> Weights:
        strength = state.strength if self.oracle else self._given(**extras)  # c_t
        lam = strength * (1 - clients.cosine)  # lambda_m
        return Weights(own=1 - lam, along=lam, metrics={"divergence": lam})  # v_m

    def needs_first_pass(self, state: BrDragState) -> jax.Array:
        del state
        return jnp.ones((), bool)

    def absorb_mean(
        self, mean: Params, state: BrDragState, *, kept: Kept, malicious: jax.Array, **extras: Any
    ) -> BrDragState:
        del mean
        attackers = kept.valid & malicious
        strength = jnp.where(attackers.any(), _theorem_2(attackers, kept.cosine), self._given(**extras))
        return state._replace(strength=strength.astype(jnp.float32))

    def _given(self, *, round: Any = None, **_: Any) -> Any:
        """``c``, or what its schedule says of this round."""
        if not callable(self.c):
            return self.c
        with checks.explained(f"c={checks.shown(self.c)}", kinds.OF_ROUND):
            return self.c(round)


def _theorem_2(attackers: Bool[Array, " clients"], cosine: Float[Array, " clients"]) -> Float[Array, ""]:
    """``w / (w - x)`` within [1/2, 1]: the factor 1/S that w and x have in common cancels."""
    number, agreement = attackers.sum(), jnp.where(attackers, cosine, 0.0).sum()
    return jnp.clip(number / jnp.maximum(number - agreement, 1e-6), 0.5, 1.0)
