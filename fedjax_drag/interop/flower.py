"""Any rule as a Flower strategy, so that it runs in a deployed federation; ``pip install 'fedjax-drag[flower]'``.

For Flower's message-based server, ``flwr.serverapp``: its older one, ``flwr.server`` with ``fit`` and ``evaluate``, is
started by functions that Flower has deprecated. A server app is then::

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = RuleStrategy(drag(c=0.25, alpha=0.25), fraction_train=0.5)
        strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=100)

Clients stay as they are: they train on the arrays that they receive, and reply with one ``ArrayRecord`` of the same
names and shapes and one ``MetricRecord`` with ``num-examples``.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fedjax_drag.interop.server import MOST_EXAMPLES, RootDelta, RuleServer, Update, update
from fedjax_drag.types import Aggregator

try:
    from flwr.app import (  # pyright: ignore[reportMissingImports]
        Array,
        ArrayRecord,
        ConfigRecord,
        Message,
        MetricRecord,
        RecordDict,
    )
    from flwr.serverapp import Grid  # pyright: ignore[reportMissingImports]
    from flwr.serverapp.strategy import FedAvg  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(f"fedjax_drag.interop.flower: {error}; pip install 'fedjax-drag[flower]'") from None

_log = logging.getLogger(__name__)


class RuleStrategy(FedAvg):
    """Flower's ``FedAvg`` with another rule in place of the average.

    Flower samples the nodes and evaluates on clients. The cohort of a round are the nodes to which a message was sent.
    Nodes that fail, do not reply in time or send an unusable reply are absent. Flower's own strategies end the
    federation at a reply that does not fit, so that a single client can stop it; this one ends it only if every node of
    a cohort sends an unusable reply, since then the clients have another model. The rule rejects updates that are not
    finite.

    Metrics of a round's training are the clients' own, averaged by Flower over the replies that have the most common
    keys, and the rule's as ``rule/NAME``: a number, or one for each node in the order of ``rule/nodes``. Metrics with
    more axes are left out.

    Args:
      rule: from :mod:`fedjax_drag.aggregators`. Those that need predictions, losses or staleness of the clients, such
        as ``clusterguard``, ``qffl`` and ``fedbuff``, are not supported, since Flower's clients do not send them.
      root_delta: ``(arrays, round) -> delta`` for rules that need one (BR-DRAG, FLTrust, root_only): trains from the
        NumPy arrays on the server's own data, as clients do, and returns the change of each array. Rounds count from
        1.
      seed: of the rule's random draws.
      **settings: of ``flwr.serverapp.strategy.FedAvg``: ``fraction_train``, ``min_train_nodes``, ``weighted_by_key``
        and others.

    Raises:
      ValueError: the rule needs an extra that a Flower server does not have, or a ``root_delta``.

    Attributes:
      server: the :class:`~fedjax_drag.interop.server.RuleServer`, which holds the rule's state.
    """

    def __init__(self, rule: Aggregator, root_delta: RootDelta | None = None, seed: int = 0, **settings: Any):
        self.server = RuleServer(rule, root_delta, seed)
        super().__init__(**settings)
        self._sent: dict[str, np.ndarray] = {}
        self._cohort: list[int] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Flower's messages; their arrays and nodes are kept for :meth:`aggregate_train`."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        self._cohort = sorted(message.metadata.dst_node_id for message in messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The rule's new arrays, and the metrics; None and None without a usable reply.

        Raises:
          ValueError: the replies of all nodes are unusable, ``root_delta`` does not fit, or the rule does not accept
            the cohort.
        """
        updates: dict[int, Update] = {}
        contents: list[RecordDict] = []
        faults: list[str] = []
        for node, content in _received(replies):
            try:
                numbers = _numbers_of(content, self.weighted_by_key)
                updates[node] = update(self._sent, _arrays_of(content), numbers[self.weighted_by_key])
                contents.append(content)
            except Exception as error:  # a malicious message may cause any exception
                faults.append(_fault(node, error))
        if faults and len(faults) == len(self._cohort):
            raise ValueError(f"round {server_round}: no reply can be used; {faults[0]}")
        if not updates:
            return None, None
        arrays, rule_metrics = self.server.round(server_round, self._sent, self._cohort, updates)
        own = {f"rule/{name}": _plain(value) for name, value in rule_metrics.items() if value.ndim <= 1}
        metrics = self.train_metrics_aggr_fn(_alike(contents), self.weighted_by_key)
        metrics.update(own | {"rule/nodes": list(self._cohort)})
        return ArrayRecord({name: Array(x) for name, x in arrays.items()}), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Flower's average of the clients' metrics, over the replies that have the most common keys."""
        del server_round
        contents = []
        for node, content in _received(replies):
            try:
                _numbers_of(content, self.weighted_by_key)
                contents.append(content)
            except ValueError as error:
                _fault(node, error)
        return self.evaluate_metrics_aggr_fn(_alike(contents), self.weighted_by_key) if contents else None


def _received(replies: Iterable[Message]) -> Iterator[tuple[int, RecordDict]]:
    """Node and content of each reply, in the order of the nodes, not in the order of arrival."""
    for message in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = message.metadata.src_node_id
        if message.has_error():
            _log.warning("node %d failed: %s", node, message.error.reason)
        else:
            yield node, message.content


def _fault(node: int, error: Exception) -> str:
    """Logs and returns, in one line, the problem with a node's reply."""
    problem = f"node {node}: {next(iter(str(error).splitlines()), type(error).__name__)}"
    _log.warning("a reply is left out: %s", problem)
    return problem


def _arrays_of(content: RecordDict) -> dict[str, np.ndarray]:
    if len(content.array_records) != 1:
        raise ValueError(f"reply with {len(content.array_records)} ArrayRecords: must be one")
    (record,) = content.array_records.values()
    return {name: array.numpy() for name, array in record.items()}


def _numbers_of(content: RecordDict, weight: str) -> MetricRecord:
    """A reply's metrics, of which ``weight`` is a number that can serve as a weight."""
    if len(content.metric_records) != 1:
        raise ValueError(f"reply with {len(content.metric_records)} MetricRecords: must be one")
    (record,) = content.metric_records.values()
    number = record.get(weight)
    if not isinstance(number, int | float) or not 0 < number <= MOST_EXAMPLES:
        raise ValueError(f"{weight}={number!r}: must be a number in (0, {MOST_EXAMPLES}]")
    return record


def _alike(contents: list[RecordDict]) -> list[RecordDict]:
    """The replies whose metrics have the most common keys and lengths; Flower's average fails on a mixture."""

    def form(content: RecordDict) -> frozenset[Any]:
        (record,) = content.metric_records.values()
        return frozenset((name, len(x) if isinstance(x, list) else None) for name, x in record.items())

    ((common, _),) = Counter(map(form, contents)).most_common(1)
    return [content for content in contents if form(content) == common]


def _plain(value: np.ndarray) -> Any:
    """A metric in the types of Flower's records: integers or floats."""
    return (value if value.dtype.kind == "f" else value.astype(int)).tolist()
