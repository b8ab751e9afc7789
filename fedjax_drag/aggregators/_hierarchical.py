"""Hierarchical aggregation: a rule in each group of clients, and a rule above."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, kinds, tree
from fedjax_drag.aggregators._bucketing import WITHOUT_CLIENT
from fedjax_drag.ops.rules import Moved, PlainAggregator
from fedjax_drag.ops.screening import empty_metrics
from fedjax_drag.types import DISSIMILARITIES, Aggregator, Deltas, Params, State

_OF_CLIENTS = WITHOUT_CLIENT | {"dissimilarity"}
"""Extras that a group does not have."""


class HierarchicalState(NamedTuple):
    """State of :class:`hierarchical`.

    Attributes:
      inner: states of the rule within, of the groups, ``[K, ...]``, without their metrics.
      outer: state of the rule above, without its metrics.
      metrics: of the last round.
    """

    inner: State
    outer: State
    metrics: dict[str, jax.Array]


class hierarchical(PlainAggregator):
    """A rule in each of K groups of clients, as at an edge server, and another rule over the groups' updates.

    ::

        Delta_k = update of the inner rule from the deltas of group k
        theta moves by the outer rule from Delta_1, ..., Delta_K

    Args:
      groups: K, blocks of clients by id, as equal as they can be; or the group of each client, ``[M]`` integers from 0.
      inner: the rule in each group, with a state for each.
      outer: the rule above, for which a group without a client that counts is absent. It must not need what only
        clients have. A group's ``num_examples`` are the sum over its clients.
      num_clients: M, clients in the federation; default those of the simulation. Needed with a number of groups.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what the two rules need, and ``client_ids``. Metrics:
      ``weight`` (the weight in the group times that of the group), ``cosine`` to the update, and ``cluster``, the group
      of each client. ``num_byzantine`` of ``inner`` counts clients of a group, that of ``outer`` groups; where one
      leaves it out, it is the number in the whole cohort. Of ``inner`` neither it nor the size of the cohort is checked
      against the group. Groups' updates are differences of parameters, with the digits that these leave.

    Raises:
      ValueError: if an argument is out of range or of another kind, or ``outer`` needs what only clients have.

    Breakdown point:
      the least number of clients that spoil a group for the inner rule, times that of groups for the outer one

    Cost:
      that of the inner rule K times, of the outer one on K rows, and 3 passes; memory S x d

    References:
      Liu et al., Client-edge-cloud hierarchical federated learning, ICC 2020, with one edge round for each global one.
    """

    groups: int | Sequence[int]
    inner: Aggregator
    outer: Aggregator
    num_clients: int | None = None
    reports = ("cluster",)
    split = "coordinates"

    def __post_init__(self) -> None:
        if not isinstance(self.groups, int):
            object.__setattr__(self, "groups", tuple(map(int, self.groups)))  # which has a hash
            if self.num_clients is None:
                object.__setattr__(self, "num_clients", len(self.groups))
        super().__post_init__()

    def check(self) -> None:
        kinds.AGGREGATOR.check("inner", self.inner)
        kinds.AGGREGATOR.check("outer", self.outer)
        if isinstance(self.groups, int):
            checks.count("groups", self.groups, 1, self.num_clients)
        elif not self.groups or min(self.groups) < 0 or self.num_clients != len(self.groups):
            number = f"{self.num_clients} of them" if self.num_clients else "one for each client"
            raise checks.ArgumentError("groups", f"must be numbers of groups from 0, {number}", given=self.groups)
        if of_clients := sorted(self.outer.needs & {*_OF_CLIENTS, *DISSIMILARITIES}):
            said = f"needs {', '.join(of_clients)}, which a group does not have"
            raise checks.ArgumentError(f"outer={self.outer.name}", said)

    @property
    def needs(self) -> frozenset[str]:
        return self.inner.needs | self.outer.needs | {"client_ids"}

    @property
    def of_client(self) -> np.ndarray:
        """The group of each client of the federation, ``[M]``."""
        if not isinstance(self.groups, int):
            return np.asarray(self.groups)
        number = checks.known("num_clients", self.num_clients, self.name)
        return np.arange(number) * self.groups // number

    @property
    def num_groups(self) -> int:
        """K."""
        return int(self.of_client.max()) + 1

    def init(self, params: Params) -> HierarchicalState:
        inner, outer, number = _bare(self.inner.init(params)), _bare(self.outer.init(params)), self.num_groups
        of_all = jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *jnp.shape(x))), inner)
        return HierarchicalState(of_all, outer, empty_metrics(cluster=jnp.zeros(0, jnp.int32)))

    def combine(
        self,
        params: Params,
        deltas: Deltas,
        state: HierarchicalState,
        *,
        valid: jax.Array,
        client_ids: jax.Array,
        **extras: Any,
    ) -> Moved:
        group = jnp.asarray(self.of_client, jnp.int32)[client_ids]

        def within(one: tuple[jax.Array, State]) -> tuple[Params, State, jax.Array]:
            k, inner = one
            of_group = _told(extras, self.inner) | {"valid": valid & (group == k), "client_ids": client_ids}
            if "key" in extras:
                of_group["key"] = jax.random.fold_in(extras["key"], k)
            moved, after = self.inner.apply(params, deltas, inner, **of_group)
            update = tree.subtract(jax.tree.map(tree.accurate, moved), params)
            return update, _bare(after), after.metrics["weight"]

        updates, inner, weight = jax.lax.map(within, (jnp.arange(self.num_groups), state.inner))
        member = valid & (group == jnp.arange(self.num_groups)[:, None])
        above = {name: value for name, value in _told(extras, self.outer).items() if name not in _OF_CLIENTS}
        if "num_examples" in above:
            above["num_examples"] = jnp.where(member, above["num_examples"], 0).sum(1)
        moved, outer = self.outer.apply(params, updates, state.outer, valid=member.any(1), **above)
        metrics = {
            "weight": tree.product(outer.metrics["weight"], weight),
            "cosine": tree.cosines(deltas, tree.subtract(jax.tree.map(tree.accurate, moved), params)),
            "cluster": group,
        }
        return moved, HierarchicalState(inner, _bare(outer), metrics)


def _told(extras: Mapping[str, Any], rule: Aggregator) -> dict[str, Any]:
    """The extras, but how many of the cohort are malicious only for a rule without a number of its own."""
    return {name: value for name, value in extras.items() if name != "num_byzantine" or name in rule.needs}


def _bare(state: State) -> State:
    return state._replace(metrics={})
