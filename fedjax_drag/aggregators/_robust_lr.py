"""Robust learning rate: goes against the mean in the coordinates in which too few clients agree on the sign."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.rules import Moved, SummedAggregator
from fedjax_drag.ops.screening import MetricsOnly, stateless
from fedjax_drag.types import Deltas, Params, Scalar, State


class robust_lr(SummedAggregator):
    """Moves along the mean where the clients' signs agree, and against it where they do not.

    In each coordinate, with n valid clients::

        eta = +1 where |sum_m sign(g_m)| >= T, else -1
        theta += eta (1/n) sum_m g_m

    A backdoor is what few clients pull towards: where they decide the mean against the others, its sign is reversed.

    Args:
      threshold: T, a number of clients, >= 0; 0 is :func:`fedavg`. With f attackers of n clients, the paper takes
        one between f + 1 and n - f; above n every coordinate is reversed.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks. Metrics: ``reversed_share`` (of the
      coordinates, those with eta = -1), ``weight`` 1/n, whose sign is eta's in each coordinate; from the whole stack
      also ``cosine`` to the update. eta has no gradient.

    Raises:
      ValueError: if ``threshold`` is negative.

    Breakdown point:
      0: one client moves it anywhere in the coordinates in which enough others have its sign

    Cost:
      6 passes over the deltas

    References:
      Ozdayi, Kantarcioglu and Gel, Defending against backdoors in federated learning with robust learning rate, AAAI
      2021, equation 5 with eta = 1; the authors' code is TinfoilHat0/Defending-Against-Backdoors-with-RLR.
      Interpretations: clients count equally, where that code weights the mean, not the signs, by numbers of examples;
      the clipping and the noise that the paper also tries are not part of the rule.
    """

    threshold: Scalar

    compared = ("cosine",)

    def check(self) -> None:
        checks.in_range("threshold", self.threshold, 0.0)

    def init(self, params: Params) -> MetricsOnly:
        return stateless(reversed_share=0.0)(params)

    def accumulate(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any
    ) -> tuple[tuple[Params, Params], jax.Array]:
        del params, state
        counts = valid.astype(jnp.float32)
        signs = tree.weighted_sum(counts, jax.tree.map(jnp.sign, jax.lax.stop_gradient(deltas)))
        return (tree.weighted_sum(counts, deltas), signs), counts

    def finish(self, params: Params, total: tuple[Params, Params], state: State, kept: jax.Array, **_: Any) -> Moved:
        del state
        per_client = tree.inverse(kept.sum())
        agreed = [leaf for leaf in jax.tree.leaves(self._agreed(total[1])) if leaf.size]
        opposed = jnp.stack([(~agree).mean() for agree in agreed])
        sizes = jnp.asarray([leaf.size for leaf in agreed], jnp.float32)
        metrics = {"weight": per_client * kept, "reversed_share": (sizes * opposed).sum() / sizes.sum()}
        return tree.move(params, tree.scale(per_client, self._turned(total))), MetricsOnly(metrics)

    def compare(self, deltas: Deltas, total: tuple[Params, Params], valid: jax.Array) -> dict[str, jax.Array]:
        del valid
        return {"cosine": tree.cosines(deltas, self._turned(total))}

    def _agreed(self, signs: Params) -> Any:
        """The coordinates in which the sum of the signs reaches the threshold, bool."""
        return jax.tree.map(lambda s: jnp.abs(s) >= self.threshold, signs)

    def _turned(self, total: tuple[Params, Params]) -> Params:
        """``eta sum_m g_m``."""
        return jax.tree.map(lambda g, agree: jnp.where(agree, g, -g), total[0], self._agreed(total[1]))
