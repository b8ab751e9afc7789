"""BR-DRAG: Byzantine-resilient DRAG, with a reference from the server's own root data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, kinds
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.weighted import Clients, FirstPass, Kept, Weights, root_delta, weighted_rule
from fedjax_drag.types import Aggregator, Params


class BrDragState(NamedTuple):
    """State of :func:`br_drag`.

    Attributes:
      metrics: of the last round.
      strength: the last round's ``c_t`` of an oracle; ``()`` without one.
    """

    metrics: dict[str, jax.Array]
    strength: Any = ()


def br_drag(c: Any | Callable[[jax.Array], jax.Array] = 0.5, oracle: bool = False) -> Aggregator:
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
    if not callable(c):
        checks.in_range("c", c, 0.0)

    def init(params: Params) -> BrDragState:
        del params
        return BrDragState(empty_metrics("divergence"), jnp.zeros(()) if oracle else ())

    given = _schedule(c) if callable(c) else lambda **_: c

    def weigh(clients: Clients, state: BrDragState, **extras: Any) -> Weights:
        strength = state.strength if oracle else given(**extras)  # c_t
        lam = strength * (1 - clients.cosine)  # lambda_m
        return Weights(own=1 - lam, along=lam, metrics={"divergence": lam})  # v_m

    def absorb(mean: Params, state: BrDragState, *, kept: Kept, malicious: jax.Array, **extras: Any) -> BrDragState:
        del mean
        attackers = kept.valid & malicious
        strength = jnp.where(attackers.any(), _theorem_2(attackers, kept.cosine), given(**extras))
        return state._replace(strength=strength.astype(jnp.float32))

    needs = {"root_delta"} | ({"round"} if callable(c) else set()) | ({"malicious"} if oracle else set())
    return weighted_rule(
        weigh,
        init,
        reference=root_delta,
        length="reference",
        before=FirstPass(lambda state: jnp.ones((), bool), absorb) if oracle else None,
        needs=frozenset(needs),
    )


def _schedule(c: Callable[..., Any]) -> Callable[..., Any]:
    """``c_t`` from the extras of the round."""

    def strength(*, round: jax.Array, **_: Any) -> Any:
        with checks.explained(f"c={checks.shown(c)}", kinds.OF_ROUND):
            return c(round)

    return strength


def _theorem_2(attackers: Bool[Array, " clients"], cosine: Float[Array, " clients"]) -> Float[Array, ""]:
    """``w / (w - x)`` within [1/2, 1]: the factor 1/S that w and x have in common cancels."""
    number, agreement = attackers.sum(), jnp.where(attackers, cosine, 0.0).sum()
    return jnp.clip(number / jnp.maximum(number - agreement, 1e-6), 0.5, 1.0)
