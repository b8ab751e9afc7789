"""A trigger that is optimised in every round, against models that have unlearned it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import numpy_directed_attacks as twin

import fedjax_drag as fd
from fedjax_drag import attacks
from fedjax_drag.types import Batch

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 8, 8)), RNG.integers(0, 5, 20)
W = RNG.normal(size=(64, 5))


def loss(params, x, y):
    outputs = x.reshape(len(x), -1) @ params["w"]
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


def rehearsed(attack, trigger=None):
    trigger = attack.init(jax.random.key(0), {}) if trigger is None else trigger
    batch = Batch(jnp.asarray(X[..., None], jnp.float32), jnp.asarray(Y))
    params = {"w": jnp.asarray(W, jnp.float32)}
    return attack.rehearse(jax.random.key(1), trigger, params, batch, loss)


@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_the_trigger_agrees_with_its_twin(weight):
    settings = {"steps": 6, "step": 0.1, "bound": 1.2, "unlearning_steps": 3, "unlearning_step": 0.5, "weight": weight}
    attack = attacks.a3fl(target=2, trigger_size=3, trigger_value=1.0, **settings)
    found = jax.jit(functools.partial(rehearsed, attack))()
    expected = twin.a3fl_trigger(X, Y, W, np.ones((3, 3)), 2, settings)
    np.testing.assert_allclose(found[..., 0], expected, rtol=0, atol=1e-5)
    assert np.abs(found).max() <= np.float32(1.2)


def test_rehearsing_brings_images_with_the_trigger_nearer_to_the_target():
    attack = attacks.a3fl(target=2, trigger_size=3, steps=20)
    x = jnp.asarray(X[..., None], jnp.float32)
    before, after = attack.init(jax.random.key(0), {}), rehearsed(attack)
    losses = [loss({"w": jnp.asarray(W)}, *attack.goal(x, jnp.asarray(Y), 5, memory=d)) for d in (before, after)]
    assert losses[1] < 0.8 * losses[0]
    np.testing.assert_array_equal(rehearsed(attacks.a3fl(steps=0)), attacks.a3fl().init(jax.random.key(0), {}))


@functools.cache
def run(kind, **settings):
    attack = {"a3fl": attacks.a3fl, "backdoor": attacks.backdoor}[kind](target=3, trigger_size=4, boost=1.0, **settings)
    return fd.simulate(
        fd.aggregators.fedavg(),
        model=fd.models.mlp(num_classes=10, hidden=(8,)),
        data=fd.data.partition.iid(fd.data.load("digits"), num_clients=10, seed=0),
        num_rounds=6,
        cohort_size=10,
        local_steps=2,
        batch_size=8,
        step_size=0.1,
        eval_every=3,
        time_clients=False,
        attack=attacks.during(attack, start=1),
        num_byzantine=2,
    )


@pytest.mark.thorough
def test_without_steps_it_is_the_backdoor():
    first, second = run("a3fl", steps=0).history, run("backdoor").history
    for name in ("attack_success_rate", "test_accuracy", "test_loss", "train_loss"):
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.thorough
def test_in_a_run_the_trigger_is_learned_and_is_what_success_is_measured_with():
    found, plain = run("a3fl", steps=20), run("backdoor")
    trigger = found.state.attack
    assert trigger.shape == (4, 4, 1)
    assert np.abs(trigger - 1).max() > 0.5
    assert found.history["attack_success_rate"][-1] > plain.history["attack_success_rate"][-1] + 0.2
    assert found.history["test_accuracy"][-1] > plain.history["test_accuracy"][-1] - 0.1


@pytest.mark.parametrize(
    ("given", "message"), [({"step": 0.0}, "step=0.0"), ({"steps": -1}, "steps=-1"), ({"weight": -1.0}, "weight=-1.0")]
)
def test_bad_arguments_of_it_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        attacks.a3fl(**given)
