"""Federated averaging, the rule that all others are measured against."""

from typing import Any, NamedTuple

import jax
import optax

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._screen import empty_metrics, screened
from fedjax_drag.types import Aggregator


class FedAvgState(NamedTuple):
    """State of :func:`fedavg`: the server optimiser's state, ``()`` without one."""

    optimizer: Any
    metrics: dict[str, jax.Array]


def fedavg(weighting: str = "uniform", server_optimizer: optax.GradientTransformation | None = None) -> Aggregator:
    """Averages the deltas: ``theta += sum_m p_m g_m``.

    Args:
      weighting: ``"uniform"`` (``p_m = 1/S``) or ``"examples"`` (``p_m`` proportional to the client's
        number of training examples; needs the extra ``num_examples``).
      server_optimizer: an optax transformation applied to the pseudo-gradient ``-sum_m p_m g_m``;
        ``optax.sgd(eta, momentum)``, ``optax.adam``, ``optax.yogi`` and ``optax.adagrad`` give FedAvgM,
        FedAdam, FedYogi and FedAdagrad. Default: a step of size 1. In a configuration, one of ``fedjax-drag list
        optimizers``.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``weight`` ``p_m``, ``cosine`` to the average.

    Raises:
      ValueError: if ``weighting`` is unknown.

    Breakdown point:
      0: one client moves it anywhere

    Cost:
      3 passes over the deltas

    References:
      McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017;
      Reddi et al., Adaptive federated optimization, 2021.

    Examples:
      >>> rule = fedavg()
      >>> state = rule.init(params)
      >>> params, state = rule.apply(params, deltas, state)
    """
    checks.one_of("weighting", weighting, ("uniform", "examples"))

    def init(params):
        optimizer = server_optimizer.init(params) if server_optimizer else ()
        return FedAvgState(optimizer, empty_metrics())

    def by_examples(valid, *, num_examples, **_):
        sizes = valid * tree.accurate(num_examples)
        return sizes * tree.inverse(sizes.sum())

    def uniform(valid, **_):
        return tree.uniform_weights(valid)

    weigh = by_examples if weighting == "examples" else uniform

    @screened
    def apply(params, deltas, state, *, valid, **extras):
        weight = weigh(valid, **extras)
        average = tree.weighted_sum(weight, deltas)
        metrics = {"weight": weight, "cosine": tree.cosines(deltas, average)}
        if not server_optimizer:
            return tree.move(params, average), FedAvgState((), metrics)
        gradient = jax.tree.map(lambda p, a: -a.astype(p.dtype), params, average)
        update, optimizer = server_optimizer.update(gradient, state.optimizer, params)
        return tree.move(params, update), FedAvgState(optimizer, metrics)

    needs = frozenset({"num_examples"} if weighting == "examples" else ())
    return Aggregator(init, apply, needs, split="clients")
