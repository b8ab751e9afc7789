"""The objective: the loss, random augmentation of inputs, and integer inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fedjax_drag as fd
from fedjax_drag.data import from_arrays
from fedjax_drag.data.augmentation import crop_flip
from fedjax_drag.losses import cross_entropy

LOGITS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32) * 3
LABELS = np.array([0, 1, 2, 3, 4, 4], np.int32)


@pytest.mark.sample(1)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy(smoothing):
    targets = optax.smooth_labels(jax.nn.one_hot(LABELS, 5), smoothing)
    expected = optax.softmax_cross_entropy(LOGITS, targets)
    np.testing.assert_allclose(cross_entropy(smoothing)(LOGITS, LABELS), expected, rtol=1e-5, atol=1e-6)
    traced = jax.jit(lambda smoothing: cross_entropy(smoothing)(jnp.asarray(LOGITS), LABELS))(smoothing)
    np.testing.assert_allclose(traced, expected, rtol=1e-5, atol=1e-6)


def test_cross_entropy_of_huge_logits():
    value, slope = jax.value_and_grad(lambda z: cross_entropy()(z, LABELS).sum())(jnp.asarray(LOGITS) * 1e4)
    assert np.isfinite(value)
    np.testing.assert_allclose(slope.sum(1), 0, atol=1e-6)


def test_a_class_that_is_masked_by_minus_infinity_counts_nothing():
    masked = jnp.asarray(LOGITS[:4]).at[:, 4].set(-jnp.inf)
    found, slope = jax.jit(jax.value_and_grad(lambda z, loss: loss(z, LABELS[:4]).sum()))(masked, cross_entropy())
    np.testing.assert_allclose(found, cross_entropy()(masked[:, :4], LABELS[:4]).sum(), rtol=1e-6)
    np.testing.assert_array_equal(slope[:, 4], 0.0)
    assert np.isfinite(slope).all()


def test_wrong_smoothing():
    with pytest.raises(ValueError, match=r"label_smoothing=1\.5"):
        cross_entropy(1.5)


@pytest.mark.thorough
def test_the_given_loss_is_minimised_and_reported(settings, fedavg):
    common = settings(num_rounds=1, eval_every=1)
    given = fd.simulate(fedavg, loss=cross_entropy(), **common)
    default = fd.simulate(fedavg, **common)
    halved = fd.simulate(fedavg, loss=lambda logits, labels: 0.5 * cross_entropy()(logits, labels), **common)
    longer = fd.simulate(fedavg, **common | {"step_size": 0.5 * common["step_size"]})
    assert jax.tree.all(jax.tree.map(np.array_equal, given.params, default.params))
    for name, leaf in halved.params["Dense_0"].items():
        np.testing.assert_allclose(leaf, longer.params["Dense_0"][name], rtol=1e-5, atol=1e-6)
    for name in ("test_loss", "train_loss"):
        np.testing.assert_allclose(2 * halved.history[name], longer.history[name], rtol=1e-5)


@pytest.mark.parametrize("loss", [lambda z, y: cross_entropy()(z, y).mean(), lambda z, y: y, lambda z, y: z])
def test_a_loss_that_is_not_one_number_for_each_example(refused, fedavg, loss):
    refused(r"^loss: returns .* must be floating, \[2\]", fedavg, loss=loss)


def test_crop_flip_gives_every_shift_of_every_image_and_its_mirror_image():
    images = np.random.default_rng(1).normal(size=(2, 4, 4, 3)).astype(np.float32)
    many = np.repeat(images, 1000, 0)
    changed = np.asarray(jax.jit(crop_flip(padding=1))(jax.random.key(0), many)).reshape(2, 1000, -1)
    for image, found in zip(images, changed, strict=True):
        padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
        shifts = [padded[i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
        allowed = np.stack([*shifts, *(shift[:, ::-1] for shift in shifts)]).reshape(18, -1)
        counts = (found[:, None] == allowed).all(-1).sum(0)
        assert counts.sum() == 1000  # nothing else is made
        assert counts.min() > 25  # 56 are expected, 7 their standard deviation


def test_a_reflected_border_shows_the_pixels_inside():
    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    shifted = np.asarray(crop_flip(2, flip=False, border="reflect")(jax.random.key(0), np.repeat(image, 200, 0)))
    padded = np.pad(image[0], ((2, 2), (2, 2), (0, 0)), "reflect")
    allowed = {padded[i : i + 4, j : j + 4].tobytes() for i in range(5) for j in range(5)}
    assert {one.tobytes() for one in shifted} == allowed


def test_crop_without_flip_or_shift_changes_nothing():
    images = np.random.default_rng(1).normal(size=(5, 4, 4, 1)).astype(np.float32)
    np.testing.assert_array_equal(crop_flip(0, flip=False)(jax.random.key(0), jnp.asarray(images)), images)
    with pytest.raises(ValueError, match="padding=-1"):
        crop_flip(-1)


@pytest.mark.slow
def test_an_augmentation_is_applied_to_every_batch_with_a_key_of_its_own(settings, fedavg):
    plain = settings(num_rounds=2, eval_every=2)
    idle = fd.simulate(fedavg, augmentation=lambda key, x: x, **plain)
    assert jax.tree.all(jax.tree.map(np.array_equal, idle.params, fd.simulate(fedavg, **plain).params))

    def noise(key, x):
        return x + jax.random.normal(key, x.shape)

    runs = [
        fd.simulate(fedavg, augmentation=noise, **plain | changes).params
        for changes in ({}, {"clients_per_chunk": 2}, {"eval_every": 1}, {"seed": 1})
    ]
    kernels = [run["Dense_0"]["kernel"] for run in runs]
    np.testing.assert_allclose(kernels[0], kernels[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(kernels[0], kernels[2])
    assert not np.allclose(kernels[0], kernels[3])
    assert not np.allclose(kernels[0], idle.params["Dense_0"]["kernel"])


def test_crop_flip_needs_images(refused, fedavg):
    flat = from_arrays(np.ones((20, 3)), np.arange(20) % 10, np.ones((4, 3)), np.arange(4) % 10, 10)
    data = fd.data.partition.iid(flat, 12)
    refused(r"crop_flip needs images", fedavg, augmentation=crop_flip(), data=data, batch_size=2)


class Bag(nn.Module):
    """Counts characters and is linear in the counts."""

    num_classes: int

    @nn.compact
    def __call__(self, tokens):
        assert tokens.dtype == jnp.int32
        return nn.Dense(self.num_classes)(nn.Embed(4, 8)(tokens).mean(1))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_tokens_reach_the_model_as_integers(settings, fedavg, dtype):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 240)
    x = (rng.integers(0, 2, (240, 6)) + 2 * y[:, None]).astype(dtype)
    data = fd.data.partition.iid(from_arrays(x[:200], y[:200], x[200:], y[200:]), 12)
    assert data.train.x.dtype == dtype
    result = fd.simulate(fedavg, **settings(data=data, model=Bag(2), num_rounds=20, eval_every=20, step_size=1.0))
    assert result.history["test_accuracy"][-1] == 1
