"""The number of malicious clients that rules assume: their own, or the simulation's."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.aggregators import (
    arc,
    bucketing,
    bulyan,
    caf,
    fedavg,
    krum,
    mda,
    meamed,
    multi_krum,
    nnm,
    rescaled_mean,
    smea,
)
from fedjax_drag.testing import check_aggregator
from fedjax_drag.tree import initial_state

COHORT, SIZE = 9, 6


def draw():
    return np.random.default_rng(0).normal(size=(COHORT, SIZE)).astype(np.float32)


def as_tree(G):
    return {"a": G[..., :4], "b": G[..., 4:]}


def once(rule, params, deltas, **told):
    """A round, compiled as one program."""
    return jax.jit(functools.partial(rule.apply, **told))(params, deltas, rule.init(params))


TOLD = {
    "krum": krum,
    "multi_krum": multi_krum,
    "bulyan": bulyan,
    "mda": mda,
    "meamed": meamed,
    "smea": smea,
    "caf": caf,
    "nnm": lambda *number: nnm(fedavg(), *number),
    "arc": lambda *number: arc(fedavg(), *number),
}


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.sample(1)
def test_a_rule_without_a_number_is_told_it_or_asks_for_it(name):
    params, deltas = as_tree(jnp.zeros(SIZE)), as_tree(draw())
    given, asked = TOLD[name](1), TOLD[name]()
    assert (given.needs, asked.needs) == (frozenset(), {"num_byzantine"})
    chex.assert_trees_all_equal(once(asked, params, deltas, num_byzantine=1), once(given, params, deltas))
    with pytest.raises(ValueError, match=rf"^num_byzantine=None: {name} must be given how many"):
        jax.eval_shape(asked.apply, params, deltas, asked.init(params))
    with pytest.raises(ValueError, match=r"num_byzantine=.*: must be an integer >= 0"):
        jax.jit(asked.apply)(params, deltas, asked.init(params), num_byzantine=1)


def test_a_number_below_the_simulations_is_warned_of():
    params, deltas, rule = as_tree(jnp.zeros(SIZE)), as_tree(draw()), krum(1)
    with pytest.warns(UserWarning, match="krum: num_byzantine=1: the simulation has 2 malicious clients in a cohort"):
        jax.eval_shape(functools.partial(rule.apply, num_byzantine=2), params, deltas, rule.init(params))


def test_a_number_no_less_than_the_simulations_is_not_warned_of():
    """Warnings are errors in these tests."""
    params, deltas, rule = as_tree(jnp.zeros(SIZE)), as_tree(draw()), krum(2)
    for told in (0, 2):
        jax.eval_shape(functools.partial(rule.apply, num_byzantine=told), params, deltas, rule.init(params))


@pytest.mark.slow
def test_wrapped_rules_are_told_through_their_wrappers():
    params, deltas = as_tree(jnp.zeros(SIZE)), as_tree(draw())
    for build in (lambda *f: bucketing(nnm(krum(*f), *f), 1), lambda *f: rescaled_mean(bulyan(*f))):
        given, asked = build(1), build()
        key = {"key": jax.random.key(0)}
        chex.assert_trees_all_equal(
            once(asked, params, deltas, num_byzantine=1, **key), once(given, params, deltas, **key)
        )


@pytest.mark.thorough
def test_the_numbers_of_a_bucketed_rule_count_buckets():
    params, deltas, rule = as_tree(jnp.zeros(SIZE)), as_tree(draw()), bucketing(krum(1))
    told = functools.partial(rule.apply, num_byzantine=3)
    jax.eval_shape(told, params, deltas, rule.init(params), key=jax.random.key(0))  # warns of nothing


def test_the_shapes_of_a_state_are_known_before_the_first_round():
    params, deltas, rule = as_tree(jnp.zeros(SIZE)), as_tree(draw()), krum()
    state = initial_state(rule.apply, rule.init(params), params, deltas, num_byzantine=1)
    assert state.metrics["weight"].shape == (COHORT,)


@pytest.mark.thorough
def test_a_rule_that_is_told_keeps_the_contract():
    check_aggregator(multi_krum())
