"""A method made of an aggregation rule and a client rule."""

import functools
from typing import Any

from fedjax_drag import kinds, tree
from fedjax_drag.checks import ArgumentError
from fedjax_drag.clients import sgd
from fedjax_drag.types import (
    DISSIMILARITIES,
    Aggregator,
    Algorithm,
    ClientRule,
    Guarantee,
    Params,
    State,
    Sums,
    Uplink,
)
from fedjax_drag.types._part import forwards


@forwards("aggregator", "name", "needs", "split", "num_clients", "init")
class from_aggregator(Algorithm):
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

    aggregator: Aggregator
    client: ClientRule = sgd()

    def __post_init__(self) -> None:
        if self.client is None:
            object.__setattr__(self, "client", sgd())
        super().__post_init__()

    def check(self) -> None:
        kinds.AGGREGATOR.check("aggregator", self.aggregator)
        kinds.CLIENT_RULE.check("client", self.client)
        _check_covered(self.aggregator, self.client)

    @property
    def guarantee(self) -> Guarantee | None:
        both = self.aggregator.guarantee, self.client.guarantee
        reported = (one for one in both if one and one.delta is not None)
        return next(reported, both[0] or both[1])

    def aggregate(self, params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Params, State]:
        return _checked(self.aggregator.apply(params, uplink.delta, state, **extras), params, state)

    @property
    def streamed(self) -> Sums | None:
        sums = self.aggregator.streamed
        return sums and sums._replace(accumulate=functools.partial(of_uplinks, sums))


def _check_covered(aggregator: Aggregator, client: ClientRule) -> None:
    """Refuses local noise on the deltas beside what it does not cover."""
    bare = sorted(aggregator.needs & {"num_examples", "selection_weight", "start_loss", *DISSIMILARITIES})
    if client.guarantee is not None and bare:
        raise ArgumentError(
            f"aggregator={aggregator.name}",
            f"needs {', '.join(bare)}, which clients would send without noise; must be a "
            "rule of the deltas alone under local_dp",
        )


def _checked(returned: Any, params: Params, state: State) -> tuple[Params, State]:
    """What a rule has returned, checked while it is traced."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ValueError(f"apply of the rule: returns a {type(returned).__name__}; must return (params, state)")
    moved, after = returned
    tree.check_like("params that the rule returns", moved, "the params it was given", params)
    tree.check_structure("state that the rule returns", after, "the state it was given", state)
    return moved, after


def of_uplinks(sums: Sums, params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Any, Any]:
    """``accumulate`` for uplinks instead of deltas."""
    return sums.accumulate(params, uplink.delta, state, **extras)
