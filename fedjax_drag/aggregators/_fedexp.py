"""FedExP: the step size that extrapolation along the average allows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.sums import average, cosine_to_sum, summing
from fedjax_drag.types import Aggregator, Sums


class FedExPState(NamedTuple):
    """State of :func:`fedexp`: the metrics of the last round."""

    metrics: dict[str, jax.Array]


def fedexp(eps: Any = 1e-3) -> Aggregator:
    """Averages the deltas and steps the further, the more they disagree.

    ::

        eta_g = max(1, sum_m ||g_m||^2 / (2 S (||mean g||^2 + eps)))
        theta += eta_g mean g

    Args:
      eps: keeps the quotient small where the average nearly vanishes, > 0, in squared units of the deltas.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that can sum as deltas come. Metrics: ``server_step_size`` (``eta_g``,
      scalar), ``weight`` ``eta_g / S``; from the whole stack also ``cosine`` to the average.

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
    checks.positive("eps", eps)

    def init(params):
        del params
        return FedExPState(empty_metrics(server_step_size=jnp.zeros(())))

    def accumulate(params, deltas, state, *, valid, **_):
        del params, state
        return tree.weighted_sum(valid.astype(jnp.float32), deltas), tree.norms(deltas)

    def finish(params, total, state, norms, *, valid, **_):
        del state
        share = tree.uniform_weights(valid)
        mean = average(total, valid)
        length = tree.norm(mean)
        unit = tree.inverse(tree.norm((length, jnp.sqrt(eps))))
        root = unit * tree.norm(jnp.sqrt(share / 2) * norms)
        longest = jnp.sqrt(jnp.finfo(root.dtype).max / 2) * jnp.sqrt(tree.inverse(jnp.maximum(length, 1.0)))
        eta = jnp.square(jnp.clip(root, 1.0, longest))
        metrics = {"weight": eta * share, "server_step_size": eta}
        return tree.move(params, tree.scale(eta, mean)), FedExPState(metrics)

    return summing(init, Sums(accumulate, finish), hindsight={"cosine": cosine_to_sum})
