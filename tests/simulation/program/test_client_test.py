"""Clients with test examples of their own: what they are evaluated on, in every way to compute it."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.settings import Settings

RNG = np.random.default_rng(0)
X = RNG.normal(size=(180, 4)).astype(np.float32)
Y = (X @ RNG.normal(size=(4, 3))).argmax(1)
OWN = [(X[start : start + 20], Y[start : start + 20]) for start in range(0, 120, 20)]
TESTS = [(X[120:123], Y[120:123]), (X[:0], Y[:0]), (X[123:124], Y[123:124]), (X[124:160], Y[124:160])] + [
    (X[160 + 5 * n : 165 + 5 * n], Y[160 + 5 * n : 165 + 5 * n]) for n in range(2)
]
"""Of the clients; the second has none."""
SHORT = {"num_rounds": 4, "cohort_size": 4, "step_size": 0.2, "local_steps": 3, "batch_size": 4, "eval_every": 2}
FEDAVG = fd.algorithms.from_aggregator(fd.aggregators.fedavg())


class Softmax(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x)


def clients(**options):
    return fd.data.from_clients(OWN, client_test=TESTS, normalize="none", **options)


def run(**changes):
    return fd.simulate(FEDAVG, **{"model": Softmax(), "data": clients(), "evaluate_clients": True} | SHORT | changes)


@pytest.fixture(scope="module")
def plain():
    return run(mesh=None)


def hits(result, x, y):
    layer = jax.tree.map(np.asarray, result.params["Dense_0"])
    return (x @ layer["kernel"] + layer["bias"]).argmax(1) == y


def test_each_client_is_evaluated_on_its_own_and_all_of_them_are_the_test_set(plain):
    wanted = [hits(plain, x, y).mean() if len(y) else np.nan for x, y in TESTS]
    np.testing.assert_allclose(plain.history["client_accuracy"][-1], wanted, rtol=1e-6)
    np.testing.assert_allclose(plain.history["client_accuracy_mean"][-1], np.nanmean(wanted), rtol=1e-6)
    everything = [np.concatenate(part) for part in zip(*TESTS, strict=True)]
    np.testing.assert_allclose(plain.history["test_accuracy"][-1], hits(plain, *everything).mean(), rtol=1e-6)


def test_nobody_gives_up_training_examples_and_training_is_that_without_evaluation(plain):
    fed = clients()
    federation = federate(Settings(FEDAVG, model=Softmax(), data=fed, evaluate_clients=True, **SHORT))
    np.testing.assert_array_equal(federation.rows, fed.rows)
    np.testing.assert_array_equal(federation.counts, 20)
    assert federation.client_test is fed.test
    without = run(evaluate_clients=False, mesh=None)
    assert jax.tree.all(jax.tree.map(np.array_equal, without.params, plain.params))


def test_a_share_is_held_out_of_what_a_client_trains_on():
    federation = federate(Settings(FEDAVG, model=Softmax(), data=clients(), evaluate_clients=0.25, **SHORT))
    np.testing.assert_array_equal(federation.counts, 15)
    np.testing.assert_array_equal(federation.held_out.counts, 5)
    assert federation.client_test is None


def test_a_test_set_beside_those_of_the_clients(plain):
    other = RNG.normal(size=(40, 4)).astype(np.float32), RNG.integers(0, 3, 40)
    fed = clients(test=other)
    assert (fed.test.num_examples, fed.client_test.examples.num_examples) == (40, 50)
    result = run(data=fed, mesh=None)
    np.testing.assert_array_equal(result.history["client_accuracy"], plain.history["client_accuracy"])
    np.testing.assert_allclose(result.history["test_accuracy"][-1], hits(result, *other).mean(), rtol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{}, {"shard_data": True}], ids=["copied", "divided"])
def test_over_two_devices(plain, options):
    shared = run(mesh="cores", **options).history
    for name in ("client_accuracy", "class_accuracy", "test_loss"):
        np.testing.assert_allclose(plain.history[name], shared[name], rtol=1e-5)


@pytest.mark.thorough
def test_cells_share_them_and_malicious_clients_do_not_count():
    """Where they are the test set, and beside one."""
    for fed in (clients(), clients(test=OWN[0])):
        attack = {"attack": fd.attacks.sign_flip(), "num_byzantine": 2, "data": fed}
        settings = {"model": Softmax(), "evaluate_clients": True} | SHORT | attack
        alone = [run(seed=seed, mesh=None, **attack).history for seed in (0, 1)]
        assert [np.isnan(history["client_accuracy"][-1]).sum() >= 2 for history in alone] == [True, True]
        batch = prepare_batch([Settings(FEDAVG, seed=seed, **settings) for seed in (0, 1)])
        _, (test, _), own, _ = batch.examples
        assert (own.x is test.x) == (fed.client_test.examples is fed.test), "one copy on the device"
        for history, cell in zip(alone, batch.run([0, 1]), strict=True):
            np.testing.assert_array_equal(history["client_accuracy"], cell.history["client_accuracy"])


def test_natural_users_are_evaluated_on_their_own_test_examples():
    users, of_test = np.arange(120) // 20 * 2, np.repeat([2, -1, 10, 3, 0, 2], 10)
    fed = fd.data.from_arrays(X[:120], Y[:120], X[120:], Y[120:], users=users, test_users=of_test)
    natural = fd.data.partition.natural(fed)
    np.testing.assert_array_equal(natural.client_test.counts, [10, 20, 0, 0, 0, 10])
    own = np.split(natural.client_test.indices, np.cumsum(natural.client_test.counts)[:-1])
    for user, indices in zip(np.unique(users), own, strict=True):
        np.testing.assert_array_equal(indices, np.flatnonzero(of_test == user))
    some = fd.data.partition.natural(fed, num_clients=3, seed=1)
    counts = [np.sum(of_test == users[row[0]]) for row in some.rows]
    np.testing.assert_array_equal(some.client_test.counts, counts)
    assert fd.data.partition.iid(natural, 4).client_test is None
    others = dataclasses.replace(fed, test_users=np.full(60, -1, np.int32))
    assert fd.data.partition.natural(others).client_test is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "test: must be given, or client_test"),
        ({"client_test": []}, "client_test: of 0 clients; must be of 6, as clients"),
        ({"client_test": TESTS[:-1]}, "client_test: of 5 clients; must be of 6, as clients"),
        (
            {"client_test": [*TESTS[:-1], (X[:2, :3], Y[:2])]},
            r"client_test\[5\]: inputs of shape \(3,\); must be \(4,\)",
        ),
        ({"client_test": TESTS, "test": (X[:, :2], Y)}, r"test: inputs of shape \(2,\); must be \(4,\) as of client_t"),
        ({"client_test": [*TESTS[:-1], (X[:2], Y[:3])]}, r"client_test\[5\]: shapes \(2, 4\), \(3,\): must be"),
        ({"client_test": [(X[:0], Y[:0])] * 6}, "test_x, test_y: shapes .* no axis of length 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        fd.data.from_clients(OWN, **arguments)
    assert "\n" not in str(error.value)


def test_clients_of_another_split_have_none_of_them():
    fed = clients()
    with pytest.raises(ValueError, match="client_test: of 6 clients; must be of 5"):
        dataclasses.replace(fed, rows=fed.rows[:5], counts=fed.counts[:5])
    with pytest.raises(ValueError, match=r"test_users: from -2 to -2: must be in \[-1, "):
        fd.data.from_arrays(X, Y, X, Y, users=np.zeros(180, int), test_users=np.full(180, -2))
    attack = {"attack": fd.attacks.sign_flip(), "num_byzantine": 6}
    with pytest.raises(ValueError, match="evaluate_clients=True: no benign client has a test example"):
        federate(Settings(FEDAVG, model=Softmax(), data=fed, evaluate_clients=True, **SHORT | attack))
