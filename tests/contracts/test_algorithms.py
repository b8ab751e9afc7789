"""What every method with two sides, and every client rule, promises."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALGORITHMS, CLIENTS, assert_like, extras, flatten, nested_params, parametrize, select
from quadratics import batches, uplink_of

from fedjax_drag import algorithms, clients
from fedjax_drag.aggregators import fedavg
from fedjax_drag.testing._promises import assert_pure
from fedjax_drag.types import ClientRule

COHORT = 5


def round_of(method, params, state, data, extra):
    uplink = uplink_of(method, params, state, extra["client_ids"], data)
    return method.aggregate(params, uplink, state, **extra)


@functools.cache
def compiled(case):
    return jax.jit(functools.partial(round_of, case.build()))


def play(case, rounds=3, order=None, step=None):
    """Some rounds; returns parameters and state."""
    method, step = case.build(), step or compiled(case)
    params = nested_params()
    state = method.init(params)
    for t in range(rounds):
        extra = extras(COHORT, t)
        extra = extra if order is None else select(extra, order)
        params, state = step(params, state, batches(), extra)
    return params, state


@parametrize(ALGORITHMS)
@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.thorough)], ids=["float32", "bfloat16"]
)
def test_protocol(case, dtype):
    """Shapes and dtypes of everything that goes down, up and into the state."""
    method, params = case.build(), nested_params(dtype)
    extra = extras(COHORT)
    assert method.needs <= case.requires

    def round(params, state):
        downlink = method.broadcast(params, state, extra["client_ids"])
        assert_like(downlink.start, params)
        assert all(leaf.shape[0] == COHORT for leaf in jax.tree.leaves(downlink.own))
        uplink = uplink_of(method, params, state, extra["client_ids"], batches())
        assert_like(uplink.delta, params, (COHORT,))
        assert all(leaf.shape[0] == COHORT for leaf in jax.tree.leaves(uplink.aux))
        return method.aggregate(params, uplink, state, **extra)

    state = method.init(params)
    after, first = jax.eval_shape(round, params, state)
    assert_like(after, params)
    assert jax.tree.structure(first) == jax.tree.structure(state)
    assert first.metrics.keys() == state.metrics.keys() >= {"weight", "cosine", "num_rejected"}
    again, second = jax.eval_shape(round, after, first)
    assert_like(again, params)
    assert_like(second, first)


@parametrize(ALGORITHMS)
def test_parameters_and_state_share_no_buffer(case):
    """So that both can be donated to the first round."""
    params = jax.tree.map(jnp.asarray, nested_params())
    leaves = [leaf for leaf in jax.tree.leaves((params, case.build().init(params))) if leaf.size]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)


@parametrize(ALGORITHMS)
@pytest.mark.sample(3)
def test_order_of_clients_does_not_matter(case):
    """Per-client state follows the client, not its place."""
    for x, y in zip(*(jax.tree.leaves(play(case, order=o)[0]) for o in (None, np.array([4, 2, 0, 3, 1]))), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


@parametrize(ALGORITHMS, fast=lambda case: case.label in ("scaffold", "fednova"))
def test_traced_again_it_is_the_same_program(case):
    method, params = case.build(), nested_params()
    assert_pure(functools.partial(round_of, method), params, method.init(params), batches(), extras(COHORT))


@parametrize(ALGORITHMS, fast=lambda case: case.label in ("scaffold", "fednova"))
@pytest.mark.sample(1)
def test_a_lost_client_counts_as_absent(case):
    """The others move parameters and state as they would without it."""
    method, params, extra = case.build(), nested_params(), extras(COHORT)
    rows = np.array([True, True, False, True, True])
    aggregate = jax.jit(method.aggregate)
    uplink = jax.jit(functools.partial(uplink_of, method))(params, method.init(params), extra["client_ids"], batches())
    smaller, expected = aggregate(
        params, jax.tree.map(lambda x: x[rows], uplink), method.init(params), **select(extra, rows)
    )
    broken, long = (
        uplink._replace(delta=jax.tree.map(lambda x, junk=junk: x.at[2].set(junk), uplink.delta))
        for junk in (np.nan, 3e38)
    )
    everybody = jnp.ones(COHORT, bool)
    for message, valid in ((uplink, jnp.asarray(rows)), (broken, everybody), (long, everybody)):
        after, state = aggregate(params, message, method.init(params), **extra, valid=valid)
        np.testing.assert_allclose(flatten(after), flatten(smaller), rtol=2e-5, atol=2e-6)
        for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            if x.shape == y.shape and x.ndim:
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@parametrize(ALGORITHMS, fast=lambda case: case.label in ("scaffold", "fednova"))
@pytest.mark.sample(1)
def test_a_round_without_an_answer_changes_nothing(case):
    """The parameters stay as they are, also after a round in which all answered, and nothing becomes NaN."""
    params, state = play(case, rounds=1)
    method, extra = case.build(), extras(COHORT, 1)
    uplink = jax.jit(functools.partial(uplink_of, method))(params, state, extra["client_ids"], batches())
    after, kept = jax.jit(method.aggregate)(params, uplink, state, **extra, valid=jnp.zeros(COHORT, bool))
    chex.assert_trees_all_equal(after, params)
    for x, y in zip(jax.tree.leaves(kept), jax.tree.leaves(state), strict=True):
        assert not np.isnan(x).any()
        assert x.shape == y.shape


@parametrize(
    # dp_sgd takes the examples of a batch one by one, and batches here are none.
    [case for case in [*ALGORITHMS, *CLIENTS] if case.sweeps and case.label != "dp_sgd"],
    slow=lambda case: case.label not in ("scaffold", "fedprox"),
    fast=lambda case: case.label == "fedprox",
)
def test_vmap_over_hyperparameters_equals_a_loop(case):
    for name, values in case.sweeps.items():

        def final(value, name=name):
            built = case.build(**{name: value})
            is_client = isinstance(built, ClientRule)
            method = algorithms.from_aggregator(fedavg(), client=built) if is_client else built
            params = nested_params()
            state = method.init(params)
            for t in range(2):
                params, state = round_of(method, params, state, batches(), extras(COHORT, t))
            return params

        swept, alone = jax.jit(jax.vmap(final))(jnp.asarray(values)), jax.jit(final)
        for k, value in enumerate(values):
            one = jax.tree.map(lambda x, k=k: x[k], swept)
            np.testing.assert_allclose(flatten(one), flatten(alone(value)), rtol=1e-5, atol=1e-6)


def test_the_client_rule_of_a_lifted_aggregator_is_the_one_given():
    params = nested_params()
    plain = algorithms.from_aggregator(fedavg())
    pulled = algorithms.from_aggregator(fedavg(), client=clients.fedprox(mu=2.0))
    ids = jnp.arange(COHORT)
    send = jax.jit(uplink_of, static_argnums=0)
    sent = [send(method, params, method.init(params), ids, batches()).delta for method in (plain, pulled)]
    norms = [np.linalg.norm(flatten(delta, 1), axis=1) for delta in sent]
    assert (norms[1] < norms[0]).all()


def test_bad_arguments_are_named_with_their_value():
    for build, name in (
        (lambda: clients.fedprox(mu=-0.1), "mu=-0.1"),
        (lambda: algorithms.scaffold(num_clients=0), "num_clients=0"),
        (lambda: algorithms.scaffold(num_clients=2.5), "num_clients=2.5"),
        (lambda: algorithms.scaffold(num_clients=4, a=float("nan")), "a=nan"),
        (lambda: algorithms.scaffold(num_clients=4, server_step_size=0.0), "server_step_size=0.0"),
        (lambda: algorithms.scaffold(num_clients=4, variate="fist"), "variate='fist'.*did you mean 'first'"),
    ):
        with pytest.raises(ValueError, match=name):
            build()
