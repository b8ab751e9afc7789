"""What a federation elsewhere makes of a rule is what the rule makes of the same deltas by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag import aggregators as rules
from fedjax_drag import tree
from fedjax_drag.algorithms import scaffold
from fedjax_drag.interop import RuleServer, Update, update
from fedjax_drag.types import Aggregator

SENT = {
    "out.weight": np.array([[1.0, -2.0], [0.5, 4.0]], np.float32),
    "norm.num_batches_tracked": np.array(3, np.int64),
    "bias": np.array([0.25, -0.5], np.float32),
}
FLOATS = [name for name in SENT if SENT[name].dtype == np.float32]
COHORT = (11, 2**63 + 5, 70)


def reply(seed, num_examples=1.0, **changes):
    """A client's update: multiples of 1/8, so that differences of sums are exact."""
    rng = np.random.default_rng(seed)
    moved = {name: SENT[name] + rng.integers(-8, 8, SENT[name].shape) / np.float32(8) for name in FLOATS}
    return update(SENT, moved | changes, num_examples)


UPDATES = {client: reply(place, place + 1) for place, client in enumerate(COHORT)}


def by_hand(rule, sent, updates, state, **extras):
    """The rule on a stack made by hand."""
    params = {name: sent[name] for name in FLOATS}
    deltas = {name: np.stack([one.delta[name] for one in updates]) for name in FLOATS}
    if state is None:
        state = tree.initial_state(rule.apply, rule.init(params), params, deltas, **extras)
    return jax.jit(rule.apply)(params, deltas, state, **extras)


def test_a_stateful_rule_continues_bit_for_bit():
    rule, sent, expected, state = rules.drag(c=0.5, alpha=0.5), SENT, SENT, None
    server = RuleServer(rule)
    for number in (1, 2, 3):
        sent, metrics = server.round(number, sent, COHORT, UPDATES)
        expected, state = by_hand(rule, expected, UPDATES.values(), state, valid=np.ones(3, bool))
        for name in FLOATS:
            np.testing.assert_array_equal(sent[name], expected[name], strict=True)
        np.testing.assert_array_equal(metrics["divergence"], state.metrics["divergence"])
    assert int(server.state.round) == 3
    assert list(sent) == list(SENT), "names in their order"
    assert sent["norm.num_batches_tracked"] == 3


def test_missing_clients_are_absent_without_a_new_compilation():
    traced = []

    def apply(params, deltas, state, **extras):
        traced.append(extras["valid"].shape)
        return rules.fedavg("examples").apply(params, deltas, state, **extras)

    server = RuleServer(rules.fedavg("examples")._replace(apply=apply, needs=frozenset({"num_examples"})))
    server.round(1, SENT, COHORT, UPDATES)
    once = len(traced)
    for number, missing in enumerate(COHORT, 2):
        there = {client: one for client, one in UPDATES.items() if client != missing}
        moved, metrics = server.round(number, SENT, COHORT, there)
        weights = np.array([UPDATES[client].num_examples * (client in there) for client in COHORT])
        np.testing.assert_allclose(metrics["weight"], weights / weights.sum(), rtol=1e-6)  # float32
        mean = sum(w * UPDATES[client].delta["bias"] for w, client in zip(weights, COHORT, strict=True)) / weights.sum()
        np.testing.assert_allclose(moved["bias"], SENT["bias"] + mean, rtol=1e-6)
    assert len(traced) == once, "one program for a cohort's size"
    server.round(5, SENT, COHORT[:2], UPDATES)
    assert len(traced) > once


def test_a_round_without_replies_keeps_arrays_and_state():
    server = RuleServer(rules.drag(c=0.5, alpha=0.5))
    moved, metrics = server.round(1, SENT, COHORT, {})
    for name in FLOATS:
        np.testing.assert_array_equal(moved[name], SENT[name])
    assert int(server.state.round) == 0
    assert metrics["weight"].tolist() == [0, 0, 0]


def test_root_delta_receives_all_arrays_and_the_round():
    asked = []
    root = {"bias": np.ones(2, np.float64), "out.weight": np.full((2, 2), 2.0)}

    def root_delta(arrays, number):
        asked.append((list(arrays), number))
        return root

    rule = rules.br_drag(c=0.5)
    moved, _ = RuleServer(rule, root_delta).round(4, SENT, COHORT, UPDATES)
    root_arrays = {name: jnp.float32(x) for name, x in root.items()}
    expected, _ = by_hand(rule, SENT, UPDATES.values(), None, valid=np.ones(3, bool), root_delta=root_arrays)
    for name in FLOATS:
        np.testing.assert_array_equal(moved[name], expected[name])
    assert asked == [(list(SENT), 4)]

    with pytest.raises(ValueError, match=r"root_delta: array 'bias' with shape \(3,\): must be \(2,\)"):
        RuleServer(rule, lambda *_: root | {"bias": np.ones(3)}).round(1, SENT, COHORT, UPDATES)
    with pytest.raises(ValueError, match=r"^root_delta: None: must be arrays by name$"):
        RuleServer(rule, lambda *_: None).round(1, SENT, COHORT, UPDATES)


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        ({"bias": np.ones(2, np.float32)}, "array 'out.weight': is missing"),
        (UPDATES[11].delta | {"bias": np.ones(3, np.float32)}, r"array 'bias' with shape \(3,\): must be \(2,\)"),
    ],
)
def test_an_update_of_another_model_is_named(delta, message):
    with pytest.raises(ValueError, match=f"^update of client 70: {message}$"):
        RuleServer(rules.fedavg()).round(1, SENT, COHORT, UPDATES | {70: Update(delta, 1.0)})


def test_the_rule_rejects_updates_that_are_not_finite():
    spoilt = UPDATES | {70: reply(2, bias=np.array([np.nan, np.inf], np.float64))}
    moved, metrics = RuleServer(rules.fedavg()).round(1, SENT, COHORT, spoilt)
    assert metrics["num_rejected"] == 1
    assert metrics["weight"].tolist() == [0.5, 0.5, 0]
    assert all(np.isfinite(moved[name]).all() for name in FLOATS)


@pytest.mark.thorough
def test_rules_with_a_state_of_each_client_recognise_clients():
    server = RuleServer(rules.foolsgold(num_clients=4))
    server.round(1, SENT, COHORT, UPDATES)
    server.round(2, SENT, (70, 11, 5), {5: reply(9), 11: reply(0)})
    assert server.rows == {11: 0, 2**63 + 5: 1, 70: 2, 5: 3}
    history = np.asarray(server.state.history.rows["bias"])
    np.testing.assert_array_equal(history[0], 2 * UPDATES[11].delta["bias"])
    np.testing.assert_array_equal(history[3], reply(9).delta["bias"])
    with pytest.raises(ValueError, match="num_clients=4: 5 clients so far; must be at least that"):
        server.round(3, SENT, (6, 11, 70), UPDATES)
    assert server.rows == {11: 0, 2**63 + 5: 1, 70: 2, 5: 3}, "a client that is refused is none"
    server.round(3, SENT, (70, 11, 5), {5: reply(9)})


@pytest.mark.parametrize("cohort", [[], [6, 11, 6]])
def test_a_round_of_nobody_or_of_a_client_twice_is_refused_in_one_line(cohort):
    with pytest.raises(ValueError) as caught:
        RuleServer(rules.fedavg()).round(1, SENT, cohort, UPDATES)
    assert str(caught.value) == f"cohort={cohort}: must have one client at least, and each once"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (rules.clusterguard(num_clusters=2), r"rule=clusterguard: needs .*dissimilarity, which only a simulation"),
        (rules.qffl(), r"rule=qffl: needs start_loss, step_size, which only a simulation tells"),
        (rules.br_drag(), r"root_delta=None: the rule needs one; give a function"),
        ("krum", r"rule='krum': must be an aggregation rule, .*; write fd.aggregators.krum\(...\)"),
        (scaffold(), r"rule=scaffold\(.*: must be an aggregation rule"),
    ],
)
def test_rules_that_cannot_be_served_are_refused_at_once(rule: Aggregator, message):
    with pytest.raises(ValueError, match=message):
        RuleServer(rule)


@pytest.mark.parametrize(
    ("changes", "num_examples", "message"),
    [
        ({"bias": np.zeros(3, np.float32)}, 1, r"array 'bias' with shape \(3,\): must be \(2,\)"),
        ({"bias": np.array(["a", "b"])}, 1, r"array 'bias' of dtype <U1: must be floating point, as float32"),
        ({}, 0, r"num_examples=0: must be in \(0, 2.*e\+09\]"),
        ({}, np.nan, r"num_examples=nan: must be in \("),
        ({}, 1e300, r"num_examples=1e\+300: must be in \("),
    ],
)
def test_a_reply_that_does_not_fit_is_one_line(changes, num_examples, message):
    with pytest.raises(ValueError, match=message):
        reply(0, num_examples, **changes)


def test_a_missing_array_and_one_that_is_not_numeric():
    with pytest.raises(ValueError, match="array 'bias': is missing"):
        update(SENT, {"out.weight": SENT["out.weight"]})
    with pytest.raises(ValueError, match="array 'name' of dtype <U1: must be of real numbers"):
        RuleServer(rules.fedavg()).round(1, SENT | {"name": np.array("x")}, COHORT, {})
