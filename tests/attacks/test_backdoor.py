"""The trigger, who carries it, the boost, and a model that learns it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.attacks import backdoor
from fedjax_drag.types import Batch, Uplink


def poisoned(attack, x, y, places, num_examples, num_classes=10):
    batch = Batch(jnp.asarray(x), jnp.asarray(y))
    known = {"positions": jnp.asarray(places), "num_examples": jnp.asarray(num_examples), "num_classes": num_classes}
    return attack.poison(jax.random.key(0), batch, **known)


def test_a_fraction_of_the_examples_carries_the_trigger_and_its_label():
    rng = np.random.default_rng(0)
    x, y, places = (
        rng.normal(size=(9, 8, 8, 1)).astype(np.float32),
        rng.integers(0, 10, 9),
        np.array([*range(8), 3]),
    )
    after = poisoned(backdoor(target=7, fraction=0.5, trigger_size=2, trigger_value=2.5), x, y, places, 8)
    carries = places < 4
    expected = x.copy()
    expected[carries, 6:, 6:] = 2.5
    np.testing.assert_array_equal(after.x, expected)
    np.testing.assert_array_equal(after.y, np.where(carries, 7, y))


@pytest.mark.parametrize(("boost", "factor"), [(None, 5 / 2), (3.0, 3.0), (1.0, 1.0)])
def test_boost(boost, factor):
    malicious = np.array([True, False, False, True, False])
    rows = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    sent = backdoor(boost=boost).forge(jax.random.key(0), Uplink(jnp.asarray(rows)), jnp.asarray(malicious)).delta
    np.testing.assert_array_equal(sent[~malicious], rows[~malicious])
    np.testing.assert_allclose(sent[malicious], factor * rows[malicious], rtol=1e-6)


def test_boosted_among_those_who_are_there():
    """Of ten clients five are absent, one of two attackers among them: the mean over five is the attacker's model."""
    malicious, valid = np.arange(10) < 2, np.arange(10) % 2 == 0
    rows = jnp.where(malicious[:, None], jnp.array([1.0, -2.0]), 0.0)
    sent = backdoor().forge(jax.random.key(0), Uplink(rows), jnp.asarray(malicious), valid=jnp.asarray(valid)).delta
    np.testing.assert_allclose(np.asarray(sent)[valid].mean(0), [1.0, -2.0])


@pytest.mark.thorough
def test_boosted_the_mean_is_the_backdoored_model():
    """Model replacement: with the others at rest, the mean of the deltas is the malicious clients' mean."""
    rows = jnp.array([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0], [3.0, -2.0]])
    sent = backdoor().forge(jax.random.key(0), Uplink(rows), jnp.array([True, False, False, True])).delta
    np.testing.assert_allclose(sent.mean(0), [2.0, 0.0])


@pytest.fixture(scope="module")
def run():
    digits = fd.data.partition.iid(fd.data.load("digits"), num_clients=10, seed=0)

    def run(aggregator, **changes):
        settings = {
            "model": fd.models.mlp(num_classes=10, hidden=(32,)),
            "data": digits,
            "num_rounds": 30,
            "cohort_size": 10,
            "local_steps": 5,
            "batch_size": 10,
            "step_size": 0.1,
            "eval_every": 30,
            "time_clients": False,
        }
        return fd.simulate(fd.algorithms.from_aggregator(aggregator), **settings | changes)

    return run


@pytest.mark.slow
def test_a_mean_learns_the_trigger_without_loss_of_accuracy_and_krum_does_not(run):
    attacked = {"attack": backdoor(target=3, boost=2.0), "byzantine_fraction": 0.2}
    mean = run(fd.aggregators.fedavg(), **attacked)
    krum = run(fd.aggregators.multi_krum(num_byzantine=2, num_selected=6), **attacked)
    assert mean.history["test_accuracy"][-1] > 0.8
    assert krum.history["test_accuracy"][-1] > 0.8
    assert mean.history["attack_success_rate"][-1] > 0.8
    assert krum.history["attack_success_rate"][-1] < 0.2
    assert "attack_success_rate" not in run(fd.aggregators.fedavg(), num_rounds=1, eval_every=1).history


@pytest.mark.slow
def test_the_success_rate_is_that_of_the_triggered_test_examples(run):
    result = run(
        fd.aggregators.fedavg(), attack=backdoor(target=3, boost=1.0), num_byzantine=5, num_rounds=3, eval_every=3
    )
    digits = fd.data.load("digits")
    x = np.array(digits.preprocess(digits.test.x))
    x[:, -3:, -3:] = 1.0
    said = np.asarray(fd.models.mlp(num_classes=10, hidden=(32,)).apply({"params": result.params}, x)).argmax(-1)
    counts = np.asarray(digits.test.y) != 3
    np.testing.assert_allclose(result.history["attack_success_rate"][-1], (said[counts] == 3).mean(), atol=1e-6)


@pytest.mark.slow
def test_label_flip_succeeds_where_the_opposite_label_is_predicted(run):
    attack = fd.attacks.label_flip(fraction=1.0)
    result = run(fd.aggregators.fedavg(), attack=attack, num_byzantine=8, num_rounds=20, eval_every=20)
    assert result.history["attack_success_rate"][-1] > 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": -1}, "target=-1: must be an integer >= 0"),
        ({"fraction": 1.5}, "fraction=1.5: must be in"),
        ({"trigger_size": 0}, "trigger_size=0: must be an integer >= 1"),
        ({"boost": 0.0}, "boost=0.0: must be"),
        ({"trigger_value": np.nan}, "trigger_value=nan"),
    ],
)
def test_bad_arguments(settings, message):
    with pytest.raises(ValueError, match=message):
        backdoor(**settings)


def test_data_that_cannot_carry_a_trigger(run):
    attacked = {"num_byzantine": 2}
    with pytest.raises(ValueError, match=r"trigger_size=9: needs images at least as large, not inputs \(8, 8, 1\)"):
        run(fd.aggregators.fedavg(), attack=backdoor(trigger_size=9), **attacked)
    with pytest.raises(ValueError, match=r"target=10: must be an integer in \[0, 9\]"):
        run(fd.aggregators.fedavg(), attack=backdoor(target=10), **attacked)
