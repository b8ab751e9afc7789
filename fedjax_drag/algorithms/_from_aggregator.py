"""A method made of an aggregation rule and a client rule."""

from typing import Any

import jax

from fedjax_drag import kinds, tree
from fedjax_drag.clients import sgd
from fedjax_drag.naming import named
from fedjax_drag.types import (
    DISSIMILARITIES,
    AggregateFn,
    Aggregator,
    Algorithm,
    ClientRule,
    Downlink,
    Params,
    State,
    Sums,
    Uplink,
)


def from_aggregator(aggregator: Aggregator, client: ClientRule | None = None) -> Algorithm:
    """The method whose clients run ``client`` and whose server applies ``aggregator`` to their deltas.

    Args:
      aggregator: the server's rule.
      client: the clients' rule; default :func:`~fedjax_drag.clients.sgd`.

    Raises:
      ValueError: if an argument is of another kind, such as a function that makes rules and was not called; if the rule
        needs numbers of the clients that :func:`~fedjax_drag.privacy.local_dp` does not cover with noise.

    Examples:
      >>> from_aggregator(drag(c=0.25, alpha=0.25), client=fedprox(mu=0.2))
    """
    kinds.AGGREGATOR.check("aggregator", aggregator)
    if client is not None:
        kinds.CLIENT_RULE.check("client", client)
        _check_covered(aggregator, client)

    def broadcast(params: Params, state: State, client_ids: jax.Array) -> Downlink:
        del state, client_ids
        return Downlink(start=params)

    def aggregate(params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Params, State]:
        return _checked(aggregator.apply(params, uplink.delta, state, **extras), params, state)

    method = Algorithm(
        client or sgd(),
        aggregator.init,
        broadcast,
        aggregate,
        aggregator.needs,
        aggregator.split,
        sums=aggregator.streamed and _of_uplinks(aggregator.streamed, aggregate),
        guarantee=aggregator.guarantee or (client.guarantee if client else None),
        num_clients=aggregator.num_clients,
    )
    return named(aggregator.name, method)


def _check_covered(aggregator: Aggregator, client: ClientRule) -> None:
    """Refuses local noise on the deltas beside what it does not cover."""
    bare = sorted(aggregator.needs & {"num_examples", *DISSIMILARITIES})
    if client.guarantee is not None and bare:
        raise ValueError(
            f"aggregator={aggregator.name}: needs {', '.join(bare)}, which clients would send without noise; must be a "
            "rule of the deltas alone under local_dp"
        )


def _checked(returned: Any, params: Params, state: State) -> tuple[Params, State]:
    """What a rule has returned, checked while it is traced."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ValueError(f"apply of the rule: returns a {type(returned).__name__}; must return (params, state)")
    moved, after = returned
    tree.check_like("params that the rule returns", moved, "the params it was given", params)
    tree.check_structure("state that the rule returns", after, "the state it was given", state)
    return moved, after


def _of_uplinks(sums: Sums, aggregate: AggregateFn) -> Sums:
    """The same sums for uplinks instead of deltas."""

    def accumulate(params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Any, Any]:
        return sums.accumulate(params, uplink.delta, state, **extras)

    return sums._replace(accumulate=accumulate, whole=aggregate)
