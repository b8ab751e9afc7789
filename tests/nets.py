"""One small network in the forms that a model may have."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

INPUTS, WIDTH, CLASSES = 64, 16, 10


class Net(nn.Module):
    """Dense, BatchNorm, dropout, dense."""

    rate: float = 0.25
    normalised: bool = True

    def setup(self):
        self.a = nn.Dense(WIDTH)
        self.bn = nn.BatchNorm(momentum=0.8)
        self.drop = nn.Dropout(self.rate)
        self.b = nn.Dense(CLASSES)

    def __call__(self, x, train):
        x = self.a(x.reshape(len(x), -1))
        x = self.bn(x, use_running_average=not train) if self.normalised else x
        return self.b(self.drop(nn.relu(x), deterministic=not train))


class NNX(nnx.Module):
    """The same as an nnx module."""

    def __init__(self, rngs, rate=0.25, normalised=True):
        self.a = nnx.Linear(INPUTS, WIDTH, rngs=rngs)
        self.bn = nnx.BatchNorm(WIDTH, momentum=0.8, rngs=rngs) if normalised else None
        self.drop = nnx.Dropout(rate, rngs=rngs) if rate else None
        self.b = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = self.a(x.reshape(len(x), -1))
        x = nnx.relu(x if self.bn is None else self.bn(x))
        return self.b(x if self.drop is None else self.drop(x))


class Noise(nn.Module):
    """Has a random stream of another name, and an argument that only its owner knows."""

    @nn.compact
    def __call__(self, x, noisy=False):
        x = nn.Dense(CLASSES)(x.reshape(len(x), -1))
        return x + jax.random.normal(self.make_rng("noise"), x.shape) if noisy else x


def init(key):
    """Parameters of a network without BatchNorm, as a plain function makes them."""
    first, second = jax.random.split(key)
    scale = lambda key, m, n: jax.random.normal(key, (m, n)) / jnp.sqrt(m)
    return {
        "a": {"kernel": scale(first, INPUTS, WIDTH), "bias": jnp.zeros(WIDTH)},
        "b": {"kernel": scale(second, WIDTH, CLASSES), "bias": jnp.zeros(CLASSES)},
    }


def apply(params, x):
    """Its logits."""
    a, b = params["a"], params["b"]
    return nn.relu(x.reshape(len(x), -1) @ a["kernel"] + a["bias"]) @ b["kernel"] + b["bias"]
