"""A local step along clipped gradients of single examples, with noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import stateless

from fedjax_drag.clients import dp_sgd, sgd
from fedjax_drag.simulation.program.local import PassInput, local_pass
from fedjax_drag.types import Batch, Downlink

CLIP = 0.7


def loss(w, batch):
    """Least squares, whose gradient for an example is ``2 (x w - y) x``."""
    errors = (batch.x @ w["kernel"] + w["bias"] - batch.y) ** 2
    real = jnp.ones(len(errors)) if batch.real is None else batch.real
    return jnp.where(real, errors, 0).sum() / real.sum()


def start(wide=3):
    return {"kernel": jnp.linspace(-1.0, 1.0, wide), "bias": jnp.float32(0.2)}


def examples(number=6, wide=3):
    rng = np.random.default_rng(0)
    return Batch(jnp.asarray(rng.normal(size=(number, wide)), jnp.float32), jnp.arange(number) % 3)


def direction(rule, batch, key=0, w=None):
    w = start() if w is None else w
    return rule.direction(jax.grad(loss), w, rule.begin(Downlink(w)), Downlink(w), batch, key=jax.random.key(key))[0]


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


def clipped_mean(batch):
    """The twin in NumPy, leaves in the order of JAX: the bias first."""
    x, y = np.asarray(batch.x, np.float64), np.asarray(batch.y)
    w, b = np.asarray(start()["kernel"], np.float64), float(start()["bias"])
    errors = 2 * (x @ w + b - y)[:, None]
    gradients = np.concatenate([errors, errors * x], axis=1)
    return (gradients * np.minimum(1, CLIP / np.linalg.norm(gradients, axis=1))[:, None]).mean(0)


def test_without_noise_it_is_the_mean_of_clipped_gradients():
    np.testing.assert_allclose(flat(direction(dp_sgd(CLIP, 0.0), examples())), clipped_mean(examples()), rtol=1e-5)


@pytest.mark.thorough
def test_with_a_long_clip_it_is_sgd():
    plain = sgd().direction(jax.grad(loss), start(), (), Downlink(start()), examples())[0]
    np.testing.assert_allclose(flat(direction(dp_sgd(1e6, 0.0), examples())), flat(plain), rtol=1e-5)


@pytest.mark.thorough
def test_padding_does_not_count():
    padded = examples()._replace(real=jnp.arange(6) < 4)
    fewer = jax.tree.map(lambda x: x[:4], examples())
    found = flat(direction(dp_sgd(CLIP, 0.5), padded))
    np.testing.assert_allclose(found, flat(direction(dp_sgd(CLIP, 0.5), fewer)), rtol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_no_example_counts_for_more_than_the_clip(value):
    batch = examples()
    spoilt = batch._replace(x=batch.x.at[2].set(value))
    rest = jax.tree.map(lambda x: jnp.delete(x, 2, 0), batch)
    found, without = 6 * flat(direction(dp_sgd(CLIP, 0.0), spoilt)), 5 * clipped_mean(rest)
    assert np.linalg.norm(found - without) <= CLIP * (1 + 1e-4)


@pytest.mark.thorough
def test_the_noise_has_its_deviation_and_is_new_in_every_step():
    w = start(5000)
    batch = Batch(jnp.zeros((4, 5000)), jnp.zeros(4))
    quiet = flat(direction(dp_sgd(CLIP, 0.0), batch, w=w))
    noises = np.stack([flat(direction(dp_sgd(CLIP, 1.5), batch, key, w)) - quiet for key in range(3)])
    np.testing.assert_allclose(noises.std(1), 1.5 * CLIP / 4, rtol=0.05)
    assert np.abs(np.corrcoef(noises) - np.eye(3)).max() < 5 / np.sqrt(5000)


@pytest.mark.thorough
def test_a_local_pass_gives_every_step_a_key_of_its_own():
    """Two passes with the same keys are the same; two steps are not."""
    batch = Batch(jnp.zeros((2, 4, 3)), jnp.zeros((2, 4)))
    keys = jax.random.split(jax.random.key(0), 2)
    flat_loss = stateless(lambda w, batch: 0.0 * loss(w, batch))

    def moved(keys):
        number = len(keys)
        drawn = jax.tree.map(lambda x: x[:number], batch)
        given = PassInput(keys=keys)
        return flat(
            local_pass(dp_sgd(1.0, 1.0), flat_loss, Downlink(start()), lambda x: x, drawn, 1.0, given=given).uplink
        )

    first, both = moved(keys[:1]), moved(keys)
    np.testing.assert_array_equal(both, moved(keys))
    np.testing.assert_allclose(both - first, moved(keys[1:]), atol=1e-6)
    assert np.abs(both - 2 * first).max() > 0.01


@pytest.mark.parametrize(("arguments", "message"), [((0.0, 1.0), "clip=0.0"), ((1.0, -1.0), "noise_multiplier=-1.0")])
def test_numbers_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        dp_sgd(*arguments)
