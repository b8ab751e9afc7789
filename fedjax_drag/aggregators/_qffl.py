"""q-FedAvg: clients with a higher loss weigh more, the more the larger q is."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.weighted import Clients, Kept, Step, WeightedAggregator, Weights
from fedjax_drag.types import Scalar, State


class qffl(WeightedAggregator):
    """Minimises ``sum_m F_m^(q+1) / (q+1)``, which spreads the loss more evenly over the clients than its mean.

    With the loss ``F_m`` of a client's examples where its local pass starts, plus 1e-10::

        theta += sum_m L F_m^q g_m / sum_m h_m,    h_m = L F_m^q + q F_m^(q-1) L^2 ||g_m||^2

    With ``q = 0`` it is :func:`fedavg`.

    Args:
      q: >= 0; may be traced. Paper: 0 to 5, often 1.
      lipschitz: L, > 0, an estimate of the Lipschitz constant of the gradients; default ``1/eta`` with the step size
        ``eta`` of local steps, as in the paper, which needs the extra ``step_size``.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks and needs ``start_loss``. Metrics:
      ``weight``, the factor of ``g_m``; from the whole stack also ``cosine`` to the update.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      0: with ``q > 0`` one client moves it as far as the largest step goes, or stops it by a long delta

    Cost:
      3 passes over the deltas, a forward pass over the examples of the cohort

    References:
      Li, Sanjabi, Beirami and Smith, Fair resource allocation in federated learning, ICLR 2020, Algorithm 2 (q-FedAvg);
      its deltas have the opposite sign and the factor L. The paper draws clients in proportion to their numbers of
      examples, here ``selection=weighted(replacement=True)``. Interpretation: ``F_m`` is over all training examples of
      the client and without regularisation, as in the authors' code; below 0 it counts as 0. Powers stop at
      ``exp(+-60)``.
    """

    q: Scalar = 1.0
    lipschitz: Scalar | None = None

    def check(self) -> None:
        checks.in_range("q", self.q, 0.0)
        if self.lipschitz is not None:
            checks.positive("lipschitz", self.lipschitz)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"start_loss"} | ({"step_size"} if self.lipschitz is None else set()))

    def weigh(self, clients: Clients, state: State, **extras: Any) -> Weights:
        del clients, state
        power = self.q * jnp.log(_positive(extras["start_loss"]))
        return Weights(own=jnp.exp(jnp.clip(power, -_MOST, _MOST)))  # F^q

    def after(self, step: Step, state: State, *, kept: Kept, **extras: Any) -> tuple[Step, State]:
        L = 1 / extras["step_size"] if self.lipschitz is None else self.lipschitz
        share = kept.weights.own * tree.inverse(kept.valid.sum())  # F^q / S
        # mean h / L = a + r^2; squares of norms need not be representable.
        part = jnp.sqrt(self.q * L * share / _positive(extras["start_loss"])) * kept.norm
        a, r = share.sum(), tree.norm(jnp.where(kept.valid, part, 0.0))
        unit = 1 / jnp.maximum(r, 1.0)
        rest = unit * tree.inverse(a * unit**2 + (r * unit) ** 2)
        metrics = step.metrics | {"weight": rest * (unit * step.metrics["weight"])}
        return Step(tree.scale(rest, tree.scale(unit, step.update)), metrics), state


def _positive(loss: jax.Array) -> jax.Array:
    """``F_m``, which is at least 0, and a little more, as in the authors' code."""
    return jnp.maximum(tree.accurate(loss), 0.0) + 1e-10


_MOST = 60.0  # exp of it, times the number of clients, is representable
