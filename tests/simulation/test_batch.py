"""Many runs as one program: the results of separate ones."""

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from traces import COMPILING, steps_in

import fedjax_drag as fd
from fedjax_drag.simulation import trace
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.cells import likeness
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Aggregator, Scalar

GRID = [(0.1, 0, 0.1), (0.5, 1, 0.1), (0.5, 2, 3.0)]
"""The correction c, the seed and the heterogeneity of each cell."""


def drag(c):
    return fd.algorithms.from_aggregator(fd.aggregators.drag(c=c, alpha=0.3))


def cells(settings, algorithm=drag, **changes):
    """Settings of each cell."""
    base = fd.data.load("digits")

    def one(c, seed, beta):
        data = fd.data.partition.dirichlet(base, num_clients=12, beta=beta, seed=seed)
        return Settings(algorithm=algorithm(c), **settings(**{"data": data, "seed": seed} | changes))

    return [one(*cell) for cell in GRID]


def assert_same(alone, together, exact=True):
    one, other = ((run.history, jax.tree.map(np.asarray, run.state)) for run in (alone, together))
    chex.assert_trees_all_equal_dtypes(one, other)
    if exact:
        chex.assert_trees_all_equal(one, other)
    else:
        chex.assert_trees_all_close(one, other, rtol=1e-4, atol=1e-5)


class Linear(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.layer(x.reshape(len(x), -1))


def test_modules_with_other_parameters_are_no_cells_of_one_program(settings):
    first = cells(settings, model=Linear(nnx.Rngs(0)))[0]
    same, other = (dataclasses.replace(first, model=Linear(nnx.Rngs(seed))) for seed in (0, 1))
    assert likeness(first) == likeness(same)
    assert likeness(first) != likeness(other)


@pytest.mark.optimised
@pytest.mark.thorough
def test_cells_are_the_separate_runs_bit_for_bit_and_compiled_once(settings):
    made = cells(settings, attack=fd.attacks.sign_flip(), byzantine_fraction=0.25)
    lengths = {one.data.rows.shape[1] for one in made}
    assert len(lengths) == len(made), "lists of different lengths, which are padded"
    batch = prepare_batch(made, width=2)
    found = batch.run([0, 1])
    with steps_in() as steps:
        found += batch.run([2])
    assert COMPILING not in steps
    for place in (0, 2):  # the slow tier compares all
        assert_same(trace(made[place]).run(), found[place])


@pytest.mark.optimised
@pytest.mark.slow
def test_cells_at_once_and_over_devices(settings):
    made = cells(settings)
    alone = [trace(one).run() for one in made]
    for options, exact in (({"cells_axis": "vmap"}, False), ({"mesh": Mesh(jax.devices()[:2], ("cells",))}, True)):
        batch = prepare_batch(made, **options)
        assert batch.width == (3 if "cells_axis" in options else 4), "filled up to what the devices divide"
        for one, own in zip(alone, batch.run(range(3)), strict=True):
            assert_same(one, own, exact)


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        pytest.param(
            lambda c: fd.algorithms.from_aggregator(fd.aggregators.br_drag(c=c)),
            {"byzantine_fraction": 0.25},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda c: fd.algorithms.scaffold(12, a=c),
            {"local_steps": None, "local_epochs": 0.5},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda c: fd.algorithms.fedacg(lam=c),
            {"byzantine_of": "cohort", "byzantine_fraction": 0.4},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["root data", "rows of clients, epochs", "malicious of cohort"],
)
def test_cells_with_root_data_rows_of_clients_and_malicious_clients_of_their_own(settings, algorithm, changes):
    made = cells(settings, algorithm, attack=fd.attacks.sign_flip(), **changes)
    found = prepare_batch(made).run(range(3))
    for place in (0, 2):
        assert_same(trace(made[place]).run(), found[place])


@pytest.mark.optimised
@pytest.mark.slow
def test_continued_equals_uninterrupted(settings):
    made = cells(settings)
    whole = prepare_batch(made).run([1, 2])
    short = [dataclasses.replace(one, num_rounds=3) for one in made]
    half = prepare_batch(short)
    states = [result.state for result in half.run([1, 2])]
    resumed = prepare_batch(made, width=2).run([1, 2], initial=states)
    for one, other in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(one.history["round"], [3, 6])
        np.testing.assert_array_equal(other.history["round"], [6])
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, one.state, other.state)))


@pytest.mark.thorough
def test_callbacks_receive_every_cell(settings):
    made = cells(settings)
    seen = []
    found = prepare_batch(made).run([2, 0], [lambda event: seen.append((event.round, event.of(1)))])
    assert [round for round, _ in seen] == [3, 6]
    last = seen[-1][1]
    assert last.metrics["test_accuracy"] == found[1].history["test_accuracy"][-1]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, last.state, found[1].state)))


class Keyed(NamedTuple):
    """State of a rule that draws from a key of its own."""

    key: Any
    metrics: Any


class Noisy(Aggregator):
    """Adds noise to the mean."""

    scale: Scalar

    def init(self, params):
        return Keyed(jax.random.key(3), {})

    def apply(self, params, deltas, state, **_):
        after, now = jax.random.split(state.key)
        noise = self.scale * jax.random.normal(now)
        return jax.tree.map(lambda p, d: p + d.mean(0) + noise, params, deltas), Keyed(after, {})


@pytest.mark.thorough
def test_a_state_with_a_random_key_is_given_to_callbacks_and_continued(settings):
    made = cells(settings, lambda scale: fd.algorithms.from_aggregator(Noisy(scale)), local_steps=1)
    seen = []
    whole = prepare_batch(made[:2])
    found = whole.run([0, 1], [lambda event: seen.append([event.of(cell).state for cell in (0, 1)])])
    again = whole.run([0, 1], initial=seen[0])
    for one, other in zip(found, again, strict=True):
        chex.assert_trees_all_close(one.params, other.params)
        assert (
            jax.random.key_data(one.state.algorithm.key).tolist()
            == jax.random.key_data(other.state.algorithm.key).tolist()
        )


class by_class(fd.types.Loss):
    """Cross-entropy with a weight for each class, an array that the cells share."""

    weight: jax.Array

    def __call__(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        return self.weight[y] * fd.losses.cross_entropy()(logits, y)


@pytest.mark.thorough
def test_clients_are_timed_once(settings):
    made = cells(settings, time_clients=True, loss=by_class(jnp.ones(10)))
    found = prepare_batch(made).run([0, 1])
    assert found[0].seconds_per_step == found[1].seconds_per_step > 0
    assert found[0].history["client_seconds"][-1] == pytest.approx(18 * found[0].seconds_per_step)
