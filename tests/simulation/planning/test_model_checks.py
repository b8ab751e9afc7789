"""Models that would train otherwise than they were written are refused in one line."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from nets import Noise

import fedjax_drag as fd


def flat(x):
    return x.reshape(len(x), -1)


class WithDropout(nn.Module):
    """Off by default, as models are called outside of training."""

    rate: float = 0.5
    on: bool = False

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(4)(x.reshape(len(x), -1))
        return nn.Dense(10)(nn.Dropout(self.rate, deterministic=not (train or self.on))(x))


class OwnNoise(nn.Module):
    """Draws random numbers itself, in training only."""

    @nn.compact
    def __call__(self, x, training: bool = False):
        x = nn.Dense(10)(x.reshape(len(x), -1))
        return x + jax.random.normal(self.make_rng("noise"), x.shape) if training else x


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=True)(x[..., 0], x[..., 0])
        return nn.Dense(10)(x.reshape(len(x), -1))


class Needs(nn.Module):
    @nn.compact
    def __call__(self, x, phase):
        return nn.Dense(10)(x.reshape(len(x), -1))


class AlwaysUpdates(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.BatchNorm(use_running_average=False)(x.reshape(len(x), -1)))


class KeepsKey(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("noise", "key", lambda: jax.random.key(0))
        return nn.Dense(10)(x.reshape(len(x), -1))


class NnxKeepsKey(nnx.Module):
    def __init__(self, rngs):
        self.dense, self.key = nnx.Linear(64, 10, rngs=rngs), nnx.BatchStat(jax.random.key(0))

    def __call__(self, x):
        return self.dense(x.reshape(len(x), -1))


class Embedded(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Embed(3, 4)(x).mean(1))


def counted(key):
    return {"kernel": jnp.zeros((64, 10)), "calls": jnp.zeros((), int)}


def kernel(key):
    return {"kernel": jnp.zeros((64, 10))}


def linear(params, x):
    return flat(x) @ params["kernel"]


def with_numpy(params, x):
    return np.dot(flat(x), params["kernel"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ((counted, linear), r"^model=\(init, apply\): parameter calls of type int32: must be floating, or be left out"),
        (
            (kernel, with_numpy),
            r"^model=\(init, apply\): fails for inputs float32\[1, 8, 8, 1\]: TracerArrayConversionError: ",
        ),
        ((kernel, lambda params, x: linear(params, x).astype(int)), "returns outputs of type int32; must be floating"),
        (
            (kernel, lambda params, x: x.reshape(1, 64) @ params["kernel"]),
            r"^model=\(init, apply\): fails in training for inputs float32\[2, 8, 8, 1\]: TypeError: cannot reshape",
        ),
        (WithDropout(on=True), "model=WithDropout: draws random numbers in evaluation: must have an argument"),
        (
            nn.Sequential([flat, nn.Dense(10), nn.Dropout(0.2, deterministic=True)]),
            r"Dropout of rate 0.2\) that is off in",
        ),
        (Attention(), r"has dropout \(MultiHeadDotProductAttention of rate 0.1\) that is off in training"),
        (Noise(), "model=Noise: draws random numbers with noisy=True: must have .*train.* or fd.models.with_modes"),
        (Needs(), "model=Needs: its call needs phase; must need its inputs only, or what is known, train"),
        (AlwaysUpdates(), r"model=AlwaysUpdates: changes its collections \(batch_stats\) in evaluation"),
        (KeepsKey(), "^model=KeepsKey: noise/key is a random key: must draw by self.make_rng or nnx.Rngs"),
        (NnxKeepsKey, "^model=NnxKeepsKey: key is a random key: must draw by self.make_rng or nnx.Rngs"),
    ],
    ids=[
        "integers",
        "numpy",
        "integer logits",
        "one example",
        "on",
        "sequential",
        "attention",
        "noisy",
        "argument",
        "statistics",
        "key of linen",
        "key of nnx",
    ],
)
def test_models_that_would_not_run_as_written_are_refused(refused, fedavg, model, message):
    refused(message, fedavg, model=model)


def test_parameters_that_are_not_trained_may_be_integers(settings, fedavg):
    fd.simulation.prepare(fedavg, **settings(model=(counted, linear), trainable="kernel"))


@pytest.mark.thorough
def test_dropout_of_rate_0_is_none(settings, fedavg):
    fd.simulation.prepare(fedavg, **settings(model=WithDropout(rate=0.0)))


@pytest.fixture(scope="module")
def tokens():
    x, y = np.random.default_rng(0).integers(0, 3, (60, 6)).astype(np.int32), np.arange(60) % 3
    return fd.data.partition.iid(fd.data.from_arrays(x, y, x, y), num_clients=6)


@pytest.mark.parametrize("model", [fd.models.mlp(3), fd.models.cnn(3), fd.models.lenet(3), nn.Dense(3)])
def test_tokens_are_no_quantities(refused, fedavg, tokens, model):
    refused(r"takes tokens \(int32 of shape .*\) as quantities; .*lstm", fedavg, model=model, data=tokens)


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", [fd.models.lstm(3, hidden=4, layers=1), Embedded()])
def test_tokens_are_embedded(settings, fedavg, tokens, model):
    fd.simulation.prepare(fedavg, **settings(model=model, data=tokens))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("shift", "found"), [(1, "1 to 3"), (-1, "-1 to 1")], ids=["large", "negative"])
def test_an_lstm_is_given_no_tokens_that_it_does_not_know(refused, settings, fedavg, tokens, shift, found):
    x, y = tokens.train.x + np.int32(shift), tokens.train.y
    data = fd.data.partition.iid(fd.data.from_arrays(x, y, x, y), num_clients=6)
    model = fd.models.lstm(3, hidden=4, layers=1)
    for form in (model, fd.models.with_modes(model)):
        refused(rf"^model=LSTM: tokens of arrays from {found}: must be in \[0, 2\]", fedavg, model=form, data=data)
    for model in (fd.models.transformer(3, layers=1, heads=1, width=4), fd.models.lora(fd.models.lstm(3))):
        refused(rf": tokens of arrays from {found}: must be in \[0, 2\]", fedavg, model=model, data=data)
    fd.simulation.prepare(fedavg, **settings(model=Embedded(), data=data))  # a module of one's own knows its tokens
