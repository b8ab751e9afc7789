"""Published networks as users write them: as they are and in fast forms, beside this package's layers and PyTorch.

A network is a function of layers and images. The layers are those of ``flax.linen``, of ``flax.nnx``, of ``jax.lax``,
of this package, or of PyTorch.
"""

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree

import fedjax_drag as fd
from benchmarks.equality import difference
from benchmarks.rounds import engine_rounds
from benchmarks.timing import Contestants, Row, check_names, in_turn, ratio
from benchmarks.workloads import COLOUR, GREY, NUM_CLASSES, WORKLOADS
from fedjax_drag.models.conv import Conv
from fedjax_drag.models.resnet import BasicBlock

OURS, GROUPS = "fd.models", 8

Network = Callable[[Any, Any], Any]
"""Of layers and images."""


def cnn(kernel: int, first: int, second: int, dense: int, first_pool: bool = True, second_relu: bool = True) -> Network:
    """Two convolutions without padding, and two dense layers."""

    def network(layers: Any, x: Any) -> Any:
        x = layers.conv(x, first, kernel, relu=True, pool=first_pool)
        x = layers.conv(x, second, kernel, relu=second_relu, pool=True)
        return layers.dense(layers.relu(layers.dense(x.reshape(len(x), -1), dense)), NUM_CLASSES)

    return network


def resnet(layers: Any, x: Any) -> Any:
    """Three basic blocks with group normalisation, two of them at stride 2."""
    x = layers.relu(layers.norm(layers.conv(x, 16, 3, 1, True)))
    x = layers.block(layers.block(layers.block(x, 16, 1), 32, 2), 64, 2)
    return layers.dense(x.mean(layers.space), NUM_CLASSES)


NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "FedAvgCNN of PFLlib, 28x28": (cnn(5, 32, 64, 512), GREY),
    "FedAvgCNN of PFLlib, 32x32": (cnn(5, 32, 64, 512), COLOUR),
    "cnn_mnist of ByzFL": (cnn(5, 20, 50, 500), GREY),
    "CIFAR-10 CNN of pfl-research": (cnn(3, 32, 64, 128, first_pool=False), COLOUR),
    "CNN of bucketing": (cnn(3, 32, 64, 128, first_pool=False, second_relu=False), GREY),
    "ResNet-8, GroupNorm": (resnet, COLOUR),
}
"""By name, a network, without its dropout, and the shape of its images."""


class Linen:
    """Flax's layers, inside a compact method; ``same`` is with padding and without a bias."""

    space = (1, 2)
    relu = staticmethod(jax.nn.relu)

    def conv(self, x: Any, features: int, k: int, *how: Any, relu: bool = False, pool: bool = False) -> Any:
        x = self.plain(x, features, k, *how)
        x = self.relu(x) if relu else x
        return self.pool(x) if pool else x

    def block(self, x: Any, features: int, stride: int) -> Any:
        y = self.relu(self.norm(self.plain(x, features, 3, stride, True)))
        y = self.norm(self.plain(y, features, 3, 1, True))
        return self.relu(y + (x if stride == 1 else self.norm(self.plain(x, features, 1, stride, True))))

    def plain(self, x: Any, features: int, k: int, stride: int = 1, same: bool = False) -> Any:
        return nn.Conv(features, (k, k), stride, padding="SAME" if same else "VALID", use_bias=not same)(x)

    def dense(self, x: Any, features: int) -> Any:
        return nn.Dense(features)(x)

    def norm(self, x: Any) -> Any:
        return nn.GroupNorm(GROUPS)(x)

    def pool(self, x: Any) -> Any:
        return nn.max_pool(x, (2, 2), (2, 2))


class Ours(Linen):
    """This package's convolutions, with all that they take up."""

    def conv(self, x: Any, features: int, k: int, *how: Any, relu: bool = False, pool: bool = False) -> Any:
        return Conv(features, k, "SAME" if how else "VALID", pool, relu=relu)(x)

    def block(self, x: Any, features: int, stride: int) -> Any:
        return BasicBlock(features, stride == 2, GROUPS)(x)


class Nnx(Linen):
    """The layers of ``flax.nnx``, made where ``rngs`` are given and kept for the calls to come."""

    def __init__(self, made: Any, rngs: Any = None) -> None:
        self.made, self.rngs, self.place = made, rngs, 0

    def layer(self, make: Callable[[], Any]) -> Any:
        if self.rngs is not None:
            self.made.append(make())
        self.place += 1
        return self.made[self.place - 1]

    def plain(self, x: Any, features: int, k: int, stride: int = 1, same: bool = False) -> Any:
        how: Any = {"padding": "SAME" if same else "VALID", "use_bias": not same, "rngs": self.rngs}
        return self.layer(lambda: nnx.Conv(x.shape[-1], features, (k, k), stride, **how))(x)

    def dense(self, x: Any, features: int) -> Any:
        return self.layer(lambda: nnx.Linear(x.shape[-1], features, rngs=self.rngs))(x)

    def norm(self, x: Any) -> Any:
        return self.layer(lambda: nnx.GroupNorm(x.shape[-1], num_groups=GROUPS, rngs=self.rngs))(x)


class Lax(Linen):
    """``jax.lax`` on the parameters of a linen module, in the order in which it names them."""

    def __init__(self, params: Any) -> None:
        self.params, self.used = params, Counter[str]()

    def own(self, kind: str) -> Any:
        self.used[kind] += 1
        return self.params[f"{kind}_{self.used[kind] - 1}"]

    def plain(self, x: Any, features: int, k: int, stride: int = 1, same: bool = False) -> Any:
        own, axes = self.own("Conv"), ("NHWC", "HWIO", "NHWC")
        pads = "SAME" if same else "VALID"
        y = jax.lax.conv_general_dilated(x, own["kernel"], (stride, stride), pads, dimension_numbers=axes)
        return y if same else y + own["bias"]

    def dense(self, x: Any, features: int) -> Any:
        own = self.own("Dense")
        return x @ own["kernel"] + own["bias"]

    def norm(self, x: Any) -> Any:
        return nn.GroupNorm(GROUPS).apply({"params": self.own("GroupNorm")}, x)

    def pool(self, x: Any) -> Any:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


class InLinen(nn.Module):
    """A network as a linen module."""

    network: Network
    layers: type

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.network(self.layers(), x)


class InNnx(nnx.Module):
    """A network as an NNX module."""

    def __init__(self, network: Network, shape: tuple[int, ...], rngs: nnx.Rngs) -> None:
        self.network, self.made = network, nnx.List([])
        network(Nnx(self.made, rngs), jnp.zeros((1, *shape)))

    def __call__(self, x: Any) -> Any:
        return self.network(Nnx(self.made), x)


def models(network: Network, shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """By library, what makes the network's model."""
    linen = InLinen(network, Linen)
    pair = (lambda key: linen.init(key, jnp.zeros((1, *shape)))["params"], lambda params, x: network(Lax(params), x))
    return {
        "nn.Conv": lambda: linen,
        "nnx.Conv": lambda: lambda rngs: InNnx(network, shape, rngs),
        "jax.lax": lambda: pair,
        OURS: lambda: InLinen(network, Ours),
    }


def run(chosen: Sequence[str], repeats: int) -> list[Row]:
    """A row for each network and library.

    Args:
      chosen: names of networks; none: all of them.
      repeats: timed rounds of each contestant.

    Raises:
      ValueError: a name is unknown.
    """
    check_names(chosen, NETWORKS)
    return [row for name in chosen or NETWORKS for row in measure(name, *NETWORKS[name], repeats)]


def measure(name: str, network: Network, shape: tuple[int, ...], repeats: int) -> list[Row]:
    """The rows of one network.

    ``difference`` is that of the parameters after the first call, of the fast forms from those of the model as it is.
    """
    work = dataclasses.replace(WORKLOADS["cnn"], image_shape=shape)
    data, rule, found = work.data(), fd.aggregators.fedavg(), models(network, shape)
    contestants: Contestants = {}
    for library, form in itertools.product(found, ("as_is", "fast")):
        own = dataclasses.replace(work, model=found[library])
        contestants[f"{library} {form}"] = engine_rounds(own, data, rule, {"model_forms": form}, 1)
    del contestants[f"{OURS} fast"]
    after = {name: np.asarray(ravel_pytree(round_().params)[0]) for name, round_ in contestants.items()}
    if find_spec("torch"):
        from benchmarks.torch_baseline import TorchNetwork, torch_device, torch_round

        sizes = work.cohort_size, work.local_steps, work.batch_size
        contestants["torch"] = torch_round(TorchNetwork(network, shape), data, *sizes, torch_device())
        contestants["torch"]()
    times = in_turn(contestants, repeats)
    return [
        {
            "network": name,
            "written in": library,
            "as_is_ms": statistics.median(times[f"{library} as_is"]),
            "fast_ms": statistics.median(times[f"{library} fast"]),
            "as_is to fast": ratio(times, f"{library} as_is", f"{library} fast"),
            "fast to ours": ratio(times, f"{library} fast", f"{OURS} as_is"),
            "fast to torch": ratio(times, f"{library} fast", "torch"),
            "difference": difference(after[f"{library} fast"], after[f"{library} as_is"]),
        }
        for library in found
        if library != OURS
    ]
