"""Attacks on the examples of malicious clients beside classification, and noise in their inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_rules

import fedjax_drag as fd
from fedjax_drag.types import Batch

RNG = np.random.default_rng(0)
SIZE = 20
PADDED = np.where(RNG.random((SIZE, 6)) < 0.3, -1, RNG.integers(0, 7, (SIZE, 6)))
NUMBERS = RNG.normal(3.0, 2.0, (SIZE, 3)).astype(np.float32)
TARGETS = {
    "label": ("label", RNG.integers(0, 7, SIZE), 7, None),
    "tokens": ("tokens", PADDED, 7, None),
    "pixels": ("tokens", RNG.integers(0, 3, (SIZE, 5)), 3, None),
    "several labels": ("several labels", RNG.integers(0, 2, (SIZE, 4)), 0, None),
    "a number": ("number", NUMBERS[:, 0], 0, 2.5),
    "several numbers": ("number", NUMBERS, 0, np.array([2.5, -1.0, 4.0])),
    "counts": ("number", RNG.integers(0, 50, SIZE), 0, 20.5),
}


def poison(attack, x, y, num_classes=0, key=0, positions=None):
    batch = Batch(jnp.asarray(x), jnp.asarray(y, jnp.float32 if y.dtype.kind == "f" else jnp.int32))
    positions = np.arange(len(y)) if positions is None else positions
    about = {"positions": jnp.asarray(positions), "num_examples": jnp.int32(SIZE), "num_classes": num_classes}
    after = attack.poison(jax.random.key(key), batch, **about)
    assert (after.x.dtype, after.y.dtype) == (batch.x.dtype, batch.y.dtype)
    return np.asarray(after.x), np.asarray(after.y)


@pytest.mark.parametrize("name", TARGETS)
def test_label_flip_is_the_reference_for_every_kind_of_target(name):
    kind, y, num_classes, mean = TARGETS[name]
    after_x, after = poison(fd.attacks.label_flip(0.55, mean), NUMBERS, y, num_classes)
    np.testing.assert_array_equal(after_x, NUMBERS)
    np.testing.assert_array_equal(after[11:], y[11:])
    wanted = [numpy_rules.opposite_target(target, kind, num_classes, mean) for target in y[:11]]
    np.testing.assert_allclose(after[:11], wanted, rtol=1e-6, atol=1e-6)


def test_flipping_twice_changes_nothing():
    for _, y, num_classes, mean in TARGETS.values():
        attack = fd.attacks.label_flip(1.0, mean)
        once = poison(attack, NUMBERS, y, num_classes)[1]
        assert (once != y).any()
        np.testing.assert_allclose(poison(attack, NUMBERS, once, num_classes)[1], y, rtol=1e-5, atol=1e-6)


def test_the_mean_of_numbers_must_be_known_outside_of_a_simulation():
    with pytest.raises(ValueError, match="target_mean=None: must be given for targets that are numbers"):
        poison(fd.attacks.label_flip(), NUMBERS, NUMBERS[:, 0])
    with pytest.raises(ValueError, match="target_mean=nan"):
        fd.attacks.label_flip(target_mean=float("nan"))
    with pytest.raises(ValueError, match="target_mean='x': must be a number"):
        fd.attacks.label_flip(target_mean="x")


def linear(y, attack, **changes):
    """A run of linear regression, all of whose three clients are malicious."""
    x = np.random.default_rng(1).normal(size=(900, 4)).astype(np.float32)
    fed = fd.data.partition.iid(fd.data.from_arrays(x, y(x), x, y(x), normalize="none"), 3)
    options = {"num_rounds": 150, "cohort_size": 3, "step_size": 0.1, "local_steps": 1, "batch_size": "full"}
    options |= {"attack": attack, "num_byzantine": 3 if attack else None, "loss": fd.losses.mse(), "metrics": []}
    result = fd.simulate(
        fd.aggregators.fedavg(), model=fd.models.mlp(y(x).shape[-1], ()), data=fed, **options | changes
    )
    return result.params["Dense_0"], result.history


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_simulation_supplies_the_mean_of_the_training_targets(wrapped):
    """Where all examples are mirrored, the linear model of least squares is mirrored about the mean target."""
    weights = np.array([[1.0, -2.0], [0.5, 0.0], [0.0, 1.0], [2.0, 1.0]])
    y = lambda x: x @ weights + [5.0, -3.0]
    flip = fd.attacks.label_flip(fraction=1.0)
    params, _ = linear(y, fd.attacks.during(flip) if wrapped else flip)
    x = np.random.default_rng(1).normal(size=(900, 4)).astype(np.float32)
    np.testing.assert_allclose(params["kernel"], -weights, atol=1e-3)
    np.testing.assert_allclose(params["bias"], 2 * y(x).mean(0) - [5.0, -3.0], atol=1e-3)


def test_its_success_is_measured_beside_labels_only():
    _, history = linear(lambda x: x[:, :1], fd.attacks.label_flip())
    assert "attack_success_rate" not in history


def test_feature_noise_is_that_of_an_example_whenever_it_is_drawn():
    attack = fd.attacks.feature_noise(sigma=2.0, fraction=0.5)
    x, y = np.zeros((SIZE, 8, 8, 1), np.float32), np.arange(SIZE) % 3
    whole, targets = poison(attack, x, y, 3)
    np.testing.assert_array_equal(targets, y)
    np.testing.assert_array_equal(whole[10:], x[10:])
    assert abs(whole[:10].std() / 2 - 1) < 0.1
    assert len(np.unique(whole[:10, 0, 0, 0])) == 10
    rows = np.array([3, 17, 3, 0])
    np.testing.assert_array_equal(poison(attack, x[rows], y[rows], 3, positions=rows)[0], whole[rows])
    assert (poison(attack, x, y, 3, key=1)[0][:10] != whole[:10]).all()  # of another client


def test_feature_noise_attenuates_least_squares():
    """Of inputs with variance 1 and noise of variance sigma^2 the slope is 1 / (1 + sigma^2) of the true one."""
    y = lambda x: x[:, :1] * 3.0
    shrunk = [linear(y, fd.attacks.feature_noise(sigma))[0]["kernel"][0, 0] for sigma in (1e-3, 1.0)]
    np.testing.assert_allclose(shrunk[0], 3.0, rtol=1e-2)
    np.testing.assert_allclose(shrunk[1], 1.5, rtol=0.05)


def test_noise_in_tokens_is_refused():
    with pytest.raises(ValueError, match="feature_noise: needs one array of numbers as inputs, not int32"):
        poison(fd.attacks.feature_noise(), np.zeros((SIZE, 5), np.int32), np.zeros(SIZE, int), 3)
    for arguments in ({"sigma": 0.0}, {"fraction": 1.1}):
        with pytest.raises(ValueError, match=r"(sigma=0.0|fraction=1.1): must be"):
            fd.attacks.feature_noise(**arguments)


def test_a_tail_needs_labels():
    fed = fd.data.from_arrays(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
    with pytest.raises(ValueError, match="edge_case: needs one label for each example, which is not in FederatedData"):
        fd.attacks.edge_case(fed)
