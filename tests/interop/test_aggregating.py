"""Rules in optax and optax's aggregators as rules; the training loop of optax's own tests is the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.experimental import aggregating
from optax.experimental._aggregating_test import _train as train

import fedjax_drag as fd
from fedjax_drag.interop.aggregating import from_optax, to_optax

DELTAS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
ADAM = aggregating.process(optax.identity(), aggregating.average_per_element_updates(), optax.adam(0.1))


def test_the_mean_as_an_aggregator_trains_as_optaxs_own():
    average, rule = aggregating.average_per_element_updates(), to_optax(fd.aggregators.fedavg())
    wanted, found = (train(aggregating.process(optax.identity(), one, optax.sgd(0.1))) for one in (average, rule))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, wanted)


@pytest.mark.parametrize("at_params", [False, True])
def test_a_rules_update_is_by_how_much_it_moves_the_parameters(at_params):
    rule, params = fd.aggregators.trimmed_mean(0.2), jnp.ones(3)
    aggregator = to_optax(rule, at_params)
    update, state = aggregator.update(DELTAS, aggregator.init(params), params)
    moved, after = rule.apply(params, DELTAS, rule.init(params))
    np.testing.assert_allclose(update, moved - params, atol=1e-6)
    np.testing.assert_array_equal(state.metrics["num_rejected"], after.metrics["num_rejected"])


def test_extras_reach_the_rule():
    aggregator = to_optax(fd.aggregators.fedavg(weighting="examples"))
    update, _ = aggregator.update(DELTAS, aggregator.init(jnp.ones(3)), num_examples=jnp.array([1, 0, 0, 0, 3]))
    np.testing.assert_allclose(update, (DELTAS[0] + 3 * DELTAS[4]) / 4, rtol=1e-5)


def test_an_aggregator_with_an_optimizer_is_a_rule_whose_rejected_clients_do_not_count():
    rule, params, state = from_optax(ADAM), jnp.ones(3), None
    state = rule.init(params)
    optimizer = optax.adam(0.1)
    wanted, memory = params, optimizer.init(params)
    for valid in ([True] * 5, [True, False, True, True, False]):
        bad = np.where(np.array(valid)[:, None], DELTAS, np.nan)
        params, state = jax.jit(rule.apply)(params, bad, state)
        update, memory = optimizer.update(-DELTAS[np.array(valid)].mean(0), memory)
        wanted = optax.apply_updates(wanted, update)
        np.testing.assert_allclose(params, wanted, rtol=1e-5)
        assert state.metrics["num_rejected"] == 5 - sum(valid)


def test_an_aggregator_of_optax_keeps_the_contract_of_rules():
    fd.testing.check_aggregator(from_optax(aggregating.average_per_element_updates()))
