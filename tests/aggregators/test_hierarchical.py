"""Hierarchical aggregation: its two ends, a round by hand, the groups' own states, and what it refuses."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import NUM_CLIENTS, SIZE, extras, flatten, nested_params, unflatten

from fedjax_drag.aggregators import bucketing, drag, fedavg, foolsgold, hierarchical, krum, median, trimmed_mean
from fedjax_drag.interop import RuleServer, update

close = functools.partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-6)


def played(rule, rounds=3, **changes):
    """Parameters and state after some rounds of all clients, one of them absent in the second."""
    params = nested_params()
    state, apply = rule.init(params), jax.jit(rule.apply)
    for t in range(rounds):
        deltas = unflatten(np.random.default_rng(t).normal(size=(NUM_CLIENTS, SIZE)))
        valid = jnp.arange(NUM_CLIENTS) != (3 if t == 1 else -1)
        params, state = apply(params, deltas, state, **extras(NUM_CLIENTS, t) | changes, valid=valid)
    return params, state


@pytest.mark.parametrize(
    "rule",
    [
        drag(c=0.5),
        *(pytest.param(rule, marks=pytest.mark.thorough) for rule in (trimmed_mean(), krum(num_byzantine=1))),
    ],
    ids=lambda rule: rule.name,
)
def test_one_group_is_the_rule_within_and_groups_of_one_are_the_rule_above(rule):
    plain, state = played(rule)
    for both in (
        hierarchical(1, rule, fedavg(), NUM_CLIENTS),
        hierarchical(NUM_CLIENTS, fedavg(), rule, NUM_CLIENTS),
    ):
        # Groups come by id, and the rule above breaks ties by their order.
        params, after = played(both, client_ids=jnp.arange(NUM_CLIENTS))
        close(params, plain)
        close(after.metrics["weight"], state.metrics["weight"])


def test_a_round_by_hand():
    """The median of the groups' means, of groups that are given; the third has nobody who counts."""
    groups, ids = (0, 1, 1, 0, 2, 2, 0, 1), np.array([7, 0, 4, 2, 6])
    G = np.random.default_rng(5).normal(size=(5, SIZE))
    valid = ids != 4
    rule = hierarchical(groups, fedavg(), median())
    params, state = jax.jit(rule.apply)(
        unflatten(np.zeros(SIZE)), unflatten(G), rule.init(nested_params()), client_ids=ids, valid=valid
    )
    means = np.stack([G[[1, 4]].mean(0), G[[0, 3]].mean(0)])
    np.testing.assert_allclose(flatten(params), np.median(means, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state.metrics["cluster"], np.array(groups)[ids])
    np.testing.assert_allclose(state.metrics["weight"].sum(), 1, rtol=1e-5)


def test_each_group_has_a_state_of_its_own():
    """A reference of DRAG for each; one whose clients are absent keeps it."""
    rule = hierarchical(2, drag(c=0.5), fedavg(), NUM_CLIENTS)
    params, ids = nested_params(), jnp.arange(NUM_CLIENTS)
    deltas = unflatten(np.random.default_rng(0).normal(size=(NUM_CLIENTS, SIZE)))
    apply, everybody = jax.jit(rule.apply), jnp.ones(NUM_CLIENTS, bool)
    _, first = apply(params, deltas, rule.init(params), client_ids=ids, valid=everybody)
    _, second = apply(params, deltas, first, client_ids=ids, valid=ids < 4)
    before, after = (flatten(state.inner.reference, 1) for state in (first, second))
    alone = drag(c=0.5)
    for k in range(2):
        _, own = jax.jit(alone.apply)(params, deltas, alone.init(params), valid=ids // 4 == k)
        np.testing.assert_allclose(before[k], flatten(own.reference), rtol=1e-5, atol=1e-6)
    assert np.abs(after[0] - before[0]).max() > 0
    np.testing.assert_array_equal(after[1], before[1])


def test_a_spoilt_group_is_left_out():
    """Two attackers in one group of two spoil the mean; the median of four groups does not care."""
    G = np.random.default_rng(1).normal(size=(NUM_CLIENTS, SIZE))
    G[:2] += 1e6
    apply = lambda rule: jax.jit(rule.apply)(
        unflatten(np.zeros(SIZE)), unflatten(G), rule.init(nested_params()), client_ids=jnp.arange(NUM_CLIENTS)
    )[0]
    assert np.abs(flatten(apply(hierarchical(4, fedavg(), median(), NUM_CLIENTS)))).max() < 5
    assert np.abs(flatten(apply(hierarchical(4, fedavg(), fedavg(), NUM_CLIENTS)))).max() > 1e5


def test_examples_of_a_group_are_those_of_its_clients():
    rule = hierarchical(2, fedavg("examples"), fedavg("examples"), NUM_CLIENTS)
    close(played(rule)[0], played(fedavg("examples"))[0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hierarchical(0, fedavg(), fedavg()), "groups=0: must be an integer >= 1"),
        (lambda: hierarchical(9, fedavg(), fedavg(), 8), r"groups=9: must be an integer in \[1, 8\]"),
        (lambda: hierarchical([0, -1], fedavg(), fedavg()), "groups=.*must be numbers of groups from 0"),
        (
            lambda: hierarchical([0, 1], fedavg(), fedavg(), 3),
            r"groups=\(0, 1\): must be numbers of groups.* 3 of",
        ),
        (
            lambda: hierarchical(2, fedavg(), foolsgold()),
            "outer=foolsgold: needs client_ids, which a group",
        ),
        (
            lambda: hierarchical(2, "krum", fedavg()),
            "inner='krum': must be an aggregation rule",
        ),
    ],
)
def test_wrong_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message) as error:
        build()
    assert "\n" not in str(error.value)


def test_clients_outside_the_groups_are_refused():
    rule, deltas = hierarchical([0, 0, 1, 1], fedavg(), fedavg()), {"w": np.ones((6, 2), np.float32)}
    params = {"w": np.zeros(2, np.float32)}
    assert rule.num_clients == 4
    with pytest.raises(ValueError, match=r"client_ids=.*: must be different integers in \[0, 3\]"):
        rule.apply(params, deltas, rule.init(params), client_ids=np.arange(6))
    server = RuleServer(rule)
    with pytest.raises(ValueError, match="num_clients=4: 6 clients so far"):
        server.round(1, params, range(6), {client: update(params, {"w": deltas["w"][0]}) for client in range(6)})


@pytest.mark.filterwarnings("error")
def test_a_number_of_malicious_clients_of_a_group_is_its_own():
    played(hierarchical(2, krum(num_byzantine=1), fedavg(), NUM_CLIENTS), rounds=1, num_byzantine=2)


def test_a_rule_that_draws_has_a_key_in_each_group():
    rule = hierarchical(2, bucketing(median()), fedavg(), NUM_CLIENTS)
    params, state = played(rule, key=jax.random.key(3))
    assert np.isfinite(flatten(params)).all()
    assert np.isfinite(state.metrics["weight"]).all()
