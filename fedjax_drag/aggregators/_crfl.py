"""CRFL: the mean, after which the parameters themselves are clipped and perturbed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, kinds, tree
from fedjax_drag.aggregators._flame import normal_noise
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.ops.rules import Moved, SummedAggregator, average, cosine_to_sum
from fedjax_drag.ops.screening import MetricsOnly, stateless
from fedjax_drag.types import Deltas, Params, Scalar, State


class crfl(SummedAggregator):
    """Shortens the parameters that the mean of the deltas leads to, and adds normal noise to them.

    In round t, with the mean over the n valid clients::

        w = theta + mean_m g_m
        theta <- w / max(1, ||w|| / rho_t) + N(0, sigma^2)

    However long a message is, the parameters stay within rho_t of the origin, up to the noise.

    Args:
      clip: ``rho_t``, the greatest norm of the parameters, > 0: a number, or a function of the round such as the
        paper's ``lambda t: jnp.minimum(2 + 0.1 * t, 15)`` for MNIST.
      sigma: standard deviation of the noise in every coordinate, >= 0; 0 adds none. Paper: 0.01 for MNIST.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``key``, and ``round`` if ``clip`` is a function, and also
      takes deltas in chunks. Metrics: ``parameter_scale`` (``min(1, rho_t / ||w||)``), ``weight`` 1/n; from the whole
      stack also ``cosine`` to the mean.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      0 for the direction; the parameters stay within rho_t and the noise, whoever is malicious

    Cost:
      3 passes over the deltas, noise of the size of the parameters

    References:
      Xie, Chen, Chen and Li, CRFL: certifiably robust federated learning against backdoor attacks, ICML 2021,
      Algorithm 1; the authors' code is AI-secure/CRFL. Interpretations: clients count equally, as in that code. Every
      round ends with noise, and so do the parameters that are evaluated; the paper leaves out that of the last round,
      and classifies by the vote of many perturbed copies, which it certifies. Neither vote nor certificate is here.
      The norm is that of the trained parameters.
    """

    clip: Scalar | Callable[[jax.Array], jax.Array]
    sigma: Scalar = 0.01

    compared = ("cosine",)

    def check(self) -> None:
        if not callable(self.clip):
            checks.positive("clip", self.clip)
        checks.in_range("sigma", self.sigma, 0.0)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"key", "round"} if callable(self.clip) else {"key"})

    @property
    def of_mean(self) -> bool:
        return True

    def init(self, params: Params) -> MetricsOnly:
        return stateless(parameter_scale=0.0)(params)

    def accumulate(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any
    ) -> tuple[Params, jax.Array]:
        del params, state
        return tree.weighted_sum(valid.astype(jnp.float32), deltas), valid

    def finish(
        self,
        params: Params,
        total: Params,
        state: State,
        kept: jax.Array,
        *,
        valid: jax.Array,
        key: jax.Array,
        round: Any = None,
        **_: Any,
    ) -> Moved:
        del state, kept
        moved = jax.tree.map(lambda p, g: tree.accurate(p) + g, params, average(total, valid))  # w
        scale = clip_scale(tree.norm(moved), self._radius(round))
        noise = normal_noise(key, moved, self.sigma)
        perturbed = jax.tree.map(lambda p, w, e: (scale * w + e).astype(p.dtype), params, moved, noise)
        metrics = {"weight": tree.uniform_weights(valid), "parameter_scale": scale}
        return perturbed, MetricsOnly(metrics)

    def compare(self, deltas: Deltas, total: Params, valid: jax.Array) -> dict[str, jax.Array]:
        return {"cosine": cosine_to_sum(deltas, total, valid)}

    def _radius(self, round: Any) -> Any:
        """``rho_t``."""
        if not callable(self.clip):
            return self.clip
        with checks.explained(f"clip={checks.shown(self.clip)}", kinds.OF_ROUND):
            return self.clip(round)
