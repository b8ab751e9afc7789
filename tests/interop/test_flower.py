"""A rule in Flower, with Flower's own messages, clients and server loop.

Flower does not go together with the newest protobuf and typer, so it has an environment of its own:
``pip install -e '.[flower,test]' 'flwr[simulation]'``, then ``pytest tests/interop -m ''``.
"""

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported
pytest.importorskip("flwr.serverapp", reason="needs flwr: pip install 'fedjax-drag[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from test_server import FLOATS, SENT, by_hand

from fedjax_drag import aggregators as rules
from fedjax_drag.interop import update
from fedjax_drag.interop.flower import RuleStrategy

NODES = (2**63 + 7, 5)
QUIET = {"fraction_evaluate": 1.0, "min_train_nodes": 2, "min_evaluate_nodes": 2}


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch):
    """Messages say what run they belong to: newer versions of Flower take it from the process."""
    with contextlib.suppress(ImportError):
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("_task_id", "_run_id", "_node_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(x)) for name, x in arrays.items()})


def numpy_of(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


def trained(arrays, who, number):
    """What a client makes of the arrays: multiples of 1/8 less a part of what it got."""
    rng = np.random.default_rng((who, number))
    step = {name: rng.integers(-8, 8, arrays[name].shape) / np.float32(8) for name in FLOATS}
    return arrays | {name: arrays[name] + step[name] - arrays[name] / 4 for name in FLOATS}


client = ClientApp()


@client.train()
def train(message, context):
    who, number = context.node_config["partition-id"], message.content["config"]["server-round"]
    returned = record(trained(numpy_of(message.content["arrays"]), who, number))
    reported = MetricRecord({"num-examples": 10 * (who + 1), "train-loss": float(who)})
    return Message(RecordDict({"arrays": returned, "metrics": reported}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    reported = MetricRecord({"num-examples": 1, "accuracy": float(context.node_config["partition-id"])})
    return Message(RecordDict({"metrics": reported}), reply_to=message)


class InProcess:
    """A grid whose nodes are clients in this process; ``spoil`` changes what they reply."""

    def __init__(self, nodes=NODES, spoil=lambda reply: reply):
        self._nodes, self._spoil = nodes, spoil

    def get_node_ids(self):
        return self._nodes

    def send_and_receive(self, messages, *, timeout=None):
        del timeout
        replies = []
        for number, message in enumerate(messages):
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"message-{number}"
            config = {"partition-id": self._nodes.index(node)}
            replies.append(client(message, Context(1, node, config, RecordDict(), {})))
        return [spoilt for spoilt in map(self._spoil, reversed(replies)) if spoilt is not None]


def expected(rule, rounds, nodes=NODES, **extras):
    """The rule by hand, in the order of the nodes."""
    arrays, state = SENT, None
    order = [nodes.index(node) for node in sorted(nodes)]
    for number in range(1, rounds + 1):
        updates = [update(arrays, trained(arrays, who, number)) for who in order]
        moved, state = by_hand(rule, arrays, updates, state, valid=np.ones(len(nodes), bool), **extras)
        arrays = arrays | {name: np.asarray(x) for name, x in moved.items()}
    return arrays, state


def same(result, arrays):
    found = numpy_of(result.arrays)
    assert list(found) == list(arrays)
    for name, x in arrays.items():
        np.testing.assert_array_equal(found[name], x, strict=True)


def test_drag_in_flowers_own_loop_is_drag_by_hand():
    rule = rules.drag(c=0.5, alpha=0.5)
    result = RuleStrategy(rule, **QUIET).start(InProcess(), record(SENT), num_rounds=3)
    arrays, state = expected(rule, 3)
    same(result, arrays)
    reported = result.train_metrics_clientapp[3]
    assert reported["train-loss"] == pytest.approx((0 * 10 + 1 * 20) / 30)
    assert reported["rule/nodes"] == sorted(NODES)
    assert reported["rule/divergence"] == state.metrics["divergence"].tolist()
    assert reported["rule/num_rejected"] == 0
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == 0.5


def test_br_drag_trains_on_the_server_too():
    root = {name: np.full_like(SENT[name], 0.5) for name in FLOATS}
    rule = rules.br_drag(c=0.5)
    result = RuleStrategy(rule, lambda *_: root, **QUIET).start(InProcess(), record(SENT), num_rounds=2)
    same(result, expected(rule, 2, root_delta=root)[0])


def wrong_shape(reply):
    reply.content["arrays"]["bias"] = Array(np.zeros(3, np.float32))
    return reply


def garbage(reply):
    reply.content["arrays"]["bias"] = Array("float32", (2,), "numpy.ndarray", b"PK no such thing")
    return reply


def no_examples(reply):
    reply.content["metrics"]["num-examples"] = float("nan")
    return reply


def failed(reply):
    error = Message(Error(0, "out of memory"), reply_to=reply)
    error.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return error


@pytest.mark.parametrize("spoil", [wrong_shape, garbage, no_examples, failed, lambda reply: None])
def test_a_client_that_fails_or_sends_an_unusable_reply_is_absent(spoil, caplog):
    nodes = (5, 9, 2)

    def one(reply):
        return spoil(reply) if reply.metadata.src_node_id == 9 and "arrays" in reply.content else reply

    with caplog.at_level(logging.WARNING, "fedjax_drag"):
        strategy = RuleStrategy(rules.fedavg(), **QUIET)
        result = strategy.start(InProcess(nodes, one), record(SENT), num_rounds=1)
    assert result.train_metrics_clientapp[1]["rule/weight"] == [0.5, 0.5, 0.0]
    assert len([line for line in caplog.messages if "node 9" in line]) == (spoil.__name__ != "<lambda>")
    deltas = [update(SENT, trained(SENT, who, 1)).delta["bias"] for who in (0, 2)]
    np.testing.assert_array_equal(numpy_of(result.arrays)["bias"], SENT["bias"] + (deltas[0] + deltas[1]) / 2)


def test_metrics_of_other_forms_do_not_stop_the_round():
    def one(reply):
        if reply.metadata.src_node_id == 9:
            reply.content["metrics"]["accuracy"] = [1.0, 2.0]
        return reply

    result = RuleStrategy(rules.fedavg(), **QUIET).start(InProcess((5, 9, 2), one), record(SENT), num_rounds=1)
    assert result.train_metrics_clientapp[1]["train-loss"] == pytest.approx((0 * 10 + 2 * 30) / 40)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 1.0
    assert result.train_metrics_clientapp[1]["rule/weight"] == pytest.approx([1 / 3] * 3), "its arrays count"


def test_clients_of_another_model_end_it_in_one_line():
    strategy = RuleStrategy(rules.fedavg(), **QUIET)
    message = r"round 1: no reply can be used; node 5: array 'bias' with shape \(3,\): must be \(2,\)"
    with pytest.raises(ValueError, match=message):
        strategy.start(InProcess(spoil=wrong_shape), record(SENT), num_rounds=1)


def test_a_round_without_replies_changes_nothing():
    strategy = RuleStrategy(rules.fedavg(), **QUIET)
    strategy.configure_train(1, record(SENT), ConfigRecord(), InProcess())
    assert strategy.aggregate_train(1, []) == (None, None)
    assert strategy.aggregate_evaluate(1, []) is None


@pytest.mark.slow
def test_simulation_of_two_supernodes(tmp_path):
    """Flower's own simulation, with its Ray backend."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'flwr[simulation]'")
    here = Path(__file__).parent
    found = tmp_path / "found.npz"
    paths = os.pathsep.join([str(here), str(here.parent)])
    environment = os.environ | {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(here / "flower_simulation.py"), str(found)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result = np.load(found)
    assert result["accuracy"] == 0.5
    assert result["nodes"].tolist() == result["known"].tolist()
    # Flower draws which node has which partition: one of the two orders is that of the nodes.
    orders = [expected(rules.drag(c=0.5, alpha=0.5), 2, order) for order in ((1, 2), (2, 1))]
    (arrays,) = [a for a, state in orders if (result["divergence"] == state.metrics["divergence"]).all()]
    for name, x in arrays.items():
        np.testing.assert_array_equal(result[name], x)
