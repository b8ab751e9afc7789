"""A server rule and a client rule, put together."""

from collections.abc import Callable

from fedjax_drag.clients import sgd
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, Params, State, Sums


def from_aggregator(aggregator: Aggregator, client: ClientRule | None = None) -> Algorithm:
    """The method whose server applies ``aggregator`` to what clients running ``client`` send.

    Args:
      aggregator: the server's rule.
      client: the clients' rule; default :func:`~fedjax_drag.clients.sgd`.

    Examples:
      >>> from_aggregator(drag(c=0.25, alpha=0.25), client=fedprox(mu=0.2))
    """

    def broadcast(params, state, client_ids):
        del state, client_ids
        return Downlink(start=params)

    def aggregate(params, uplink, state, **extras):
        return aggregator.apply(params, uplink.delta, state, **extras)

    return Algorithm(
        client or sgd(),
        aggregator.init,
        broadcast,
        aggregate,
        aggregator.needs,
        aggregator.split,
        sums=aggregator.streamed and _of_uplinks(aggregator.streamed, aggregate),
    )


def _of_uplinks(sums: Sums, aggregate: Callable[..., tuple[Params, State]]) -> Sums:
    """The same sums for uplinks instead of deltas."""

    def accumulate(params, uplink, state, **extras):
        return sums.accumulate(params, uplink.delta, state, **extras)

    return sums._replace(accumulate=accumulate, whole=aggregate)
