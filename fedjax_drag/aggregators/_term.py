"""TERM: weights that grow exponentially with a client's loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.weighted import Clients, Kept, Step, WeightedAggregator, Weights
from fedjax_drag.types import Params, Scalar


class TermState(NamedTuple):
    """State of :func:`term`.

    Attributes:
      tilted_loss: of the last cohort, scalar.
      metrics: of the last round.
    """

    tilted_loss: jax.Array
    metrics: dict[str, jax.Array]


class term(WeightedAggregator):
    """Minimises the tilted loss of the clients, between their mean (``t = 0``) and their worst (``t`` to infinity).

    With the loss ``F_m`` of a client's examples where its local pass starts, and ``p_m`` as ``weighting`` says::

        R = (1/t) log sum_m p_m exp(t F_m)
        theta += sum_m w_m g_m,    w_m = p_m exp(t F_m) / sum_k p_k exp(t F_k)

    With ``t = 0`` it is :func:`fedavg`; with ``t < 0`` clients of high loss weigh less, as outliers do.

    Args:
      t: the tilt; may be traced. Paper: 0.1 to 10 for fairness.
      weighting: ``"uniform"`` or ``"examples"`` (``p_m`` in proportion to the client's number of training examples;
        needs the extra ``num_examples``).

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks and needs ``start_loss``. Metrics:
      ``weight`` ``w_m``; ``tilted_loss`` ``R`` of the cohort (scalar); from the whole stack also ``cosine`` to the
      update.

    Raises:
      ValueError: if ``t`` is not finite or ``weighting`` unknown.

    Breakdown point:
      0: one client moves it anywhere, and one that makes up a loss takes all the weight

    Cost:
      3 passes over the deltas, a forward pass over the examples of the cohort

    References:
      Li, Beirami, Sanjabi and Smith, Tilted empirical risk minimization, ICLR 2021, Lemma 1, and equation 4 with
      clients as groups and a tilt of 0 within each. Interpretation: exponents are taken of ``F_m`` less ``R`` of the
      round before, which cancels, as in Algorithm 2; weights stop at ``exp(+-60)``.
    """

    t: Scalar = 1.0
    weighting: str = "uniform"

    def check(self) -> None:
        checks.in_range("t", self.t)
        checks.one_of("weighting", self.weighting, ("uniform", "examples"))

    def init(self, params: Params) -> TermState:
        del params
        return TermState(jnp.zeros(()), empty_metrics(tilted_loss=jnp.zeros(())))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"start_loss"} | ({"num_examples"} if self.weighting == "examples" else set()))

    def weigh(self, clients: Clients, state: TermState, **extras: Any) -> Weights:
        del clients
        exponent = self.t * (extras["start_loss"] - state.tilted_loss)
        own = jnp.exp(jnp.clip(exponent, -_MOST, _MOST)) * self._shares(**extras)
        return Weights(own=own, mass=own)

    def after(self, step: Step, state: TermState, *, kept: Kept, **extras: Any) -> tuple[Step, TermState]:
        share = jnp.where(kept.valid, self._shares(**extras), 0.0)
        share = share * tree.inverse(share.sum())
        loss = jnp.where(kept.valid, extras["start_loss"], 0.0)
        mean = (share * loss).sum()
        power = self.t * (loss - mean)
        near = jnp.log1p(
            (share * jnp.expm1(power)).sum()
        )  # without loss of digits near t = 0, where it is divided by t
        apart = jnp.where(jnp.abs(power).max() < 1, near, jax.nn.logsumexp(power, b=share))
        tilted = mean + jnp.where(self.t == 0, 0.0, apart / jnp.where(self.t == 0, 1.0, self.t))
        return step._replace(metrics=step.metrics | {"tilted_loss": tilted}), state._replace(tilted_loss=tilted)

    def _shares(self, *, start_loss: jax.Array, num_examples: Any = None, **_: Any) -> jax.Array:
        return tree.accurate(num_examples) if self.weighting == "examples" else jnp.ones_like(start_loss)


_MOST = 60.0  # exp of it, times numbers of examples and of clients, is representable
