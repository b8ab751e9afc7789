"""Federated averaging, the rule that all others are measured against."""

from typing import Any, NamedTuple

import jax
import optax

from fedjax_drag import checks, kinds, tree
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.ops.weighted import Clients, Step, WeightedAggregator, Weights
from fedjax_drag.types import Optimizer, Params
from fedjax_drag.types._part import as_part, value_of

_NEEDS = {
    "uniform": frozenset(),
    "examples": frozenset({"num_examples"}),
    "unbiased": frozenset({"selection_weight"}),
}
"""Ways to weigh, and the extras that each needs."""


class FedAvgState(NamedTuple):
    """State of :func:`fedavg`: the server optimiser's state, ``()`` without one."""

    optimizer: Any
    metrics: dict[str, jax.Array]


class fedavg(WeightedAggregator):
    """Averages the deltas: ``theta += sum_m p_m g_m``.

    Args:
      weighting: ``"uniform"`` (``p_m = 1/S``); ``"examples"`` (``p_m`` proportional to the client's number of training
        examples; needs the extra ``num_examples``); or ``"unbiased"``: the weights of the run's selection with which
        the expected update is that of all clients that can be drawn, weighted by examples (needs the extra
        ``selection_weight``). They add up to 1 on the average only.
      server_optimizer: an optax transformation applied to the pseudo-gradient ``-sum_m p_m g_m``. FedAvgM, FedAdam,
        FedYogi and FedAdagrad are in :mod:`fedjax_drag.server_optimizers`; ``optax.adam``, ``optax.yogi`` and
        ``optax.adagrad`` differ from the last three in where the moments start, how that is corrected, and where
        ``eps`` is added. Default: a step of size 1. In a configuration, one of ``fedjax-drag list optimizers``.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that also takes deltas in chunks. Metrics: ``weight`` ``p_m``; from the
      whole stack also ``cosine`` to the average.

    Raises:
      ValueError: if ``weighting`` is unknown, or ``server_optimizer`` no optax transformation.

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

    weighting: str = "uniform"
    server_optimizer: Optimizer | optax.GradientTransformation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "server_optimizer", as_part(self.server_optimizer))

    def check(self) -> None:
        checks.one_of("weighting", self.weighting, tuple(_NEEDS))
        if self.server_optimizer is not None:
            kinds.OPTIMIZER.check("server_optimizer", value_of(self.server_optimizer))

    def init(self, params: Params) -> FedAvgState:
        optimizer = value_of(self.server_optimizer).init(params) if self.server_optimizer is not None else ()
        return FedAvgState(optimizer, empty_metrics())

    @property
    def needs(self) -> frozenset[str]:
        return _NEEDS[self.weighting]

    @property
    def of_mean(self) -> bool:
        return self.weighting == "uniform"

    def weigh(self, clients: Clients, state: FedAvgState, **extras: Any) -> Weights:
        del clients, state
        if self.weighting == "uniform":
            return Weights(own=1.0)
        if self.weighting == "unbiased":
            return Weights(own=tree.accurate(extras["selection_weight"]))
        number = tree.accurate(extras["num_examples"])
        return Weights(own=number, mass=number)

    def after(self, step: Step, state: FedAvgState, *, params: Params, **_: Any) -> tuple[Step, FedAvgState]:
        if self.server_optimizer is None:
            return step, state
        gradient = jax.tree.map(lambda p, u: -u.astype(p.dtype), params, step.update)
        with checks.explained("server_optimizer", kinds.OF_UPDATES):
            update, optimizer = value_of(self.server_optimizer).update(gradient, state.optimizer, params)
        return step._replace(update=update), state._replace(optimizer=optimizer)
