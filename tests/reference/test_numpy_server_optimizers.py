"""``fedavg`` with an optimiser on the server against the optimisers' formulas in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import numpy_rules, numpy_server_optimizers, twins
from reference.twins import Pair

from fedjax_drag import server_optimizers
from fedjax_drag.aggregators import fedavg as averaging_rule
from fedjax_drag.experiment.build.registry import TABLES


def averaging(optimizer, weighting="uniform"):
    """A twin: the optimiser steps along the pseudo-gradient ``-sum p g``; its state counts its steps."""

    def twin(G, state, t, e):
        average = numpy_rules.fedavg(G, e["num_examples"] if weighting == "examples" else None)
        memory, steps = (None, 0) if state is None else state
        update, memory = optimizer(-average.update, memory, steps + 1)
        return average._replace(update=update, state=(memory, steps + 1))

    return twin


def pair(name, *args, module=server_optimizers, weighting="uniform", twin=None, **settings):
    """``fedavg`` with an optimiser, beside the twin that is told the same."""
    optimizer = getattr(module, name)(*args, **settings)
    twin = getattr(numpy_server_optimizers, name)(*args, **settings) if twin is None else twin
    return Pair("fedavg", {"weighting": weighting, "server_optimizer": optimizer}, averaging(twin, weighting))


momentum = numpy_server_optimizers.sgd
PAIRS = {
    "sgd": pair("sgd", 0.7, module=optax),
    "fedavgm": pair("fedavgm", 0.5, twin=momentum(0.5, 0.9)),
    "fedavgm-nesterov": pair("fedavgm", 0.5, nesterov=True, twin=momentum(0.5, 0.9, nesterov=True)),
    "fedadam": pair("fedadam", 0.1),
    "fedadam-large_tau": pair("fedadam", 0.1, b1=0.5, b2=0.9, tau=0.3),
    "fedyogi": pair("fedyogi", 0.1),
    "fedyogi-large_tau": pair("fedyogi", 0.1, b1=0.5, b2=0.9, tau=0.37),
    "fedadagrad": pair("fedadagrad", 0.1),
    "fedadagrad-momentum": pair("fedadagrad", 0.1, b1=0.5, tau=0.3),
    "adam": pair("adam", 0.1, module=optax, b1=0.9, b2=0.99, eps=1e-3),
    "yogi": pair("yogi", 0.1, module=optax, b1=0.9, b2=0.99, eps=1e-3),
    "adagrad": pair("adagrad", 0.1, module=optax),
    "fedavgm-examples": pair("sgd", 0.5, module=optax, momentum=0.9, weighting="examples"),
}
ADAPTIVE = ("fedadam", "fedyogi", "fedadagrad", "adam", "yogi", "adagrad")


def cases():
    """Cohorts of ten; of three, one in the thorough tier: their size is nothing to an optimiser."""
    for name in PAIRS:
        yield pytest.param(name, 10, marks=("-" in name) * [pytest.mark.thorough])
        yield pytest.param(name, 3, marks=pytest.mark.thorough if name == "fedadam" else pytest.mark.slow)


@pytest.mark.parametrize(("name", "S"), list(cases()))
@pytest.mark.sample(4)
def test_agrees_with_its_twin(name, S):
    """Three rounds; with clients missing, a round in which nobody counts is no step of the optimiser."""
    twins.duel(PAIRS[name], S)
    twins.duel(PAIRS[name], S, missing=S // 3)


def test_momentum_worked_by_hand():
    """Means 1, 2, 0 with momentum 1/2 and rate 1 move by 1, 2.5, 1.25."""
    by_hand = pair("sgd", 1.0, module=optax, momentum=0.5)
    cohorts = [np.full((3, twins.SIZE), mean) for mean in (1.0, 2.0, 0.0)]
    moves = [played.update[0] for played in twins.play(by_hand, cohorts, np.random.default_rng(0))]
    np.testing.assert_allclose(moves, [1, 2.5, 1.25], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAIRS)
def test_twins_agree_with_themselves_in_scale(name):
    """Adaptive optimisers forget the scale of large gradients, the others keep it: a check of the twins."""
    rng = np.random.default_rng(1)
    G = twins.random(rng, 10)
    told = {"num_examples": np.ones(10)}
    small, large = (PAIRS[name].twin(scale * G, None, 0, told).update for scale in (1e6, 1e8))
    ratio = np.linalg.norm(large) / np.linalg.norm(small)
    np.testing.assert_allclose(ratio, 1 if name.split("-")[0] in ADAPTIVE else 100, rtol=1e-3)


def walk(optimizer, cohorts):
    """Where deltas ``[T, S, D]`` lead ``fedavg`` in T rounds, from 0."""
    rule = averaging_rule(server_optimizer=optimizer)
    params = jnp.zeros(cohorts.shape[-1])
    state = rule.init(params)
    for deltas in cohorts:
        params, state = rule.apply(params, deltas, state)
    return params


def small_deltas():
    """Eight rounds of clients that agree in part."""
    rng = np.random.default_rng(0)
    return jnp.asarray(0.02 * (rng.normal(size=200) + rng.normal(size=(8, 3, 200))), jnp.float32)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ours", "of_optax", "least"),
    [
        (server_optimizers.fedadam(0.01), optax.adam(0.01, b2=0.99, eps=1e-3), 0.25),
        (server_optimizers.fedyogi(0.01), optax.yogi(0.01, b2=0.99, eps=1e-3), 0.25),
        (server_optimizers.fedadagrad(0.01), optax.adagrad(0.01), 0.75),
    ],
    ids=["fedadam", "fedyogi", "fedadagrad"],
)
def test_optimisers_of_the_same_name_differ_from_those_of_optax(ours, of_optax, least):
    """By about 30 % of the displacement, Adagrad by 80 %, as squared deltas are small beside optax's 0.1."""
    paper, theirs = (jax.jit(functools.partial(walk, optimizer))(small_deltas()) for optimizer in (ours, of_optax))
    assert np.linalg.norm(theirs - paper) > least * np.linalg.norm(paper)


@pytest.mark.slow
@pytest.mark.parametrize("name", server_optimizers.__all__)
def test_a_configuration_and_the_python_interface_name_the_same(name):
    arguments = {} if name == "fedavgm" else {"learning_rate": 0.01}
    named, called = TABLES["optimizer"][name](**arguments), getattr(server_optimizers, name)(**arguments)
    np.testing.assert_array_equal(walk(named, small_deltas()), walk(called, small_deltas()))


def test_a_momentum_of_zero_keeps_the_state_of_a_sweep_over_momenta():
    """Else a cell of a sweep could not be resumed alone."""
    alone = server_optimizers.fedavgm(1.0, 0.0).init(small_deltas()[0])
    swept = jax.eval_shape(lambda momentum: server_optimizers.fedavgm(1.0, momentum).init(small_deltas()[0]), 0.0)
    assert jax.tree.structure(alone) == jax.tree.structure(swept)


@pytest.mark.thorough
def test_momentum_and_the_degree_of_adaptivity_may_be_traced():
    """A sweep over them is one program."""

    def end(momentum, tau):
        optimizers = server_optimizers.fedavgm(1.0, momentum), server_optimizers.fedadam(0.01, tau=tau)
        return jnp.stack([walk(optimizer, small_deltas()[:2]) for optimizer in optimizers])

    swept = jax.jit(jax.vmap(end))(jnp.array([0.0, 0.9]), jnp.array([1e-3, 0.1]))
    for row, (momentum, tau) in zip(swept, ((0.0, 1e-3), (0.9, 0.1)), strict=True):
        np.testing.assert_allclose(row, jax.jit(end, static_argnums=(0, 1))(momentum, tau), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: server_optimizers.fedavgm(0.0), r"learning_rate=0.0: must be in \(0, inf\)"),
        (lambda: server_optimizers.fedavgm(1.0, 1.0), r"momentum=1.0: must be in \[0, 1\)"),
        (lambda: server_optimizers.fedadam(0.1, b1=-0.1), r"b1=-0.1: must be in \[0, 1\)"),
        (lambda: server_optimizers.fedyogi(0.1, b2=1.0), r"b2=1.0: must be in \[0, 1\)"),
        (lambda: server_optimizers.fedadagrad(0.1, tau=0.0), r"tau=0.0: must be in \(0, inf\)"),
        (lambda: server_optimizers.fedadagrad("0.1"), "learning_rate='0.1': must be a number"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, message):
    with pytest.raises(ValueError, match=message):
        build()
