"""Rules as aggregators of ``optax.experimental.aggregating``, and the reverse."""

# ruff: noqa: D102, N801 - a rule, as in fedjax_drag.aggregators
# pyright: reportIncompatibleMethodOverride=false

from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from optax.experimental import aggregating

from fedjax_drag import kinds, tree
from fedjax_drag.kernels.arithmetic import expand
from fedjax_drag.ops.rules import PlainAggregator, Wrapped
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.types import Aggregator, Deltas, Params, State


def to_optax(rule: Aggregator, at_params: bool = False) -> aggregating.Aggregator:
    """A rule as an aggregator of gradients, in place of their average.

    The rule takes the gradients of examples or workers for deltas; the update is by how much it would move the
    parameters. The optimizer in ``aggregating.process(optax.identity(), to_optax(rule), optax.adam(0.1))`` receives it.

    Args:
      rule: any. Extras that it needs, such as ``key`` or ``client_ids``, are keyword arguments of ``update``.
      at_params: whether the rule gets the parameters that ``update`` is given, as few rules need, and not zeros in
        their place. The update is then a difference of parameters, rounded like them.

    Returns:
      ``init(params)`` and ``update(updates [S, *p], state, params=None, **extras) -> (update, state)``.

    Raises:
      ValueError: ``rule`` is no rule.
    """
    kinds.AGGREGATOR.check("rule", rule)

    def update(
        per_elt_updates: Deltas, state: State, params: Params | None = None, **extras: Any
    ) -> tuple[Params, State]:
        at = params if at_params else jax.tree.map(lambda rows: jnp.zeros(rows.shape[1:], rows.dtype), per_elt_updates)
        after, state = rule.apply(at, per_elt_updates, state, **extras)
        return jax.tree.map(jnp.subtract, after, at), state

    return aggregating.Aggregator(rule.init, cast("Any", update))


class from_optax(PlainAggregator):
    """An aggregator of optax as a rule.

    It receives the clients' deltas with their sign turned, as gradients are, so that an optimizer in it, as in
    ``aggregating.process(optax.identity(), aggregating.average_per_element_updates(), optax.adam(1e-2))``, descends.
    What it returns is added to the parameters. Clients that do not count have the mean of the others. The metric
    ``weight`` is the same for all others, since it is not known what the aggregator does.

    Args:
      aggregator: with ``update(updates [S, *p], state, params) -> (update, state)``.
    """

    aggregator: optax.GradientTransformation

    def init(self, params: Params) -> Wrapped:
        return Wrapped(self.aggregator.init(params), empty_metrics())

    def combine(
        self, params: Params, deltas: Deltas, state: Wrapped, *, valid: jax.Array, **_: Any
    ) -> tuple[Params, Wrapped]:
        weight = valid * tree.inverse(valid.sum().astype(jnp.float32))
        mean = tree.weighted_sum(weight, deltas)
        row = lambda delta, mean: -jnp.where(expand(valid, delta), delta, mean)
        update, inner = self.aggregator.update(jax.tree.map(row, deltas, mean), state.inner, params)
        metrics = {"weight": weight, "cosine": tree.cosines(deltas, update)}
        return optax.apply_updates(params, update), Wrapped(inner, metrics)
