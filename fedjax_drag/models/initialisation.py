"""How the parameters of a model begin: as in Flax, in PyTorch or in NIID-Bench.

The functions give the arguments of a layer that are its initialisers, for one of the names in :data:`INITS`:

* ``"flax"``: none, so that the layer keeps its own.
* ``"torch"``: the defaults of PyTorch's layers. Kernels **and biases** of dense layers and convolutions are uniform in
  ``+-1/sqrt(fan_in)``, where ``fan_in`` counts the inputs of one output: the inputs of a dense layer, ``k k Cin`` of a
  convolution. PyTorch calls it ``kaiming_uniform_(a=sqrt(5))``, whose gain of ``sqrt(1/3)`` leaves this bound.
  All parameters of an LSTM are uniform in ``+-1/sqrt(hidden)``, embeddings are ``N(0, 1)``.
* ``"normal"``: ``FcNet``, the perceptron of NIID-Bench. Kernels are ``N(0, 0.1)``, with 0.1 as standard deviation, and
  biases are 0.1.

Scales of normalisation layers begin at 1 and their shifts at 0 in all of them, as in Flax and PyTorch.

References:
  PyTorch, ``reset_parameters`` of ``torch.nn.Linear``, ``_ConvNd``, ``RNNBase`` and ``Embedding``.
  Li et al., Federated learning on non-IID data silos: An experimental study, ICDE 2022, with its code, NIID-Bench.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]
"""``(key, shape, dtype) -> parameter``."""

INITS = ("flax", "torch", "normal")
"""Names of the initialisations of a model."""


def layer(init: str, fan_in: int) -> dict[str, Any]:
    """Initialisers of a dense layer or a convolution.

    Args:
      init: one of :data:`INITS`.
      fan_in: inputs of one output.
    """
    if init == "torch":
        return {"kernel_init": uniform(fan_in**-0.5), "bias_init": uniform(fan_in**-0.5)}
    if init == "normal":
        return {"kernel_init": nn.initializers.normal(0.1), "bias_init": nn.initializers.constant(0.1)}
    return {}


def embedding(init: str) -> dict[str, Any]:
    """Initialiser of an embedding.

    Args:
      init: ``"flax"`` or ``"torch"``.
    """
    return {"embedding_init": nn.initializers.normal(1.0)} if init == "torch" else {}


def lstm(init: str, hidden: int) -> dict[str, Any]:
    """Initialisers of an LSTM layer.

    PyTorch has two biases for each gate, one beside each kernel, which only ever occur as their sum. The one bias here
    begins as that sum, of two independent draws: in ``+-2/sqrt(hidden)``, with a triangular density. Both of PyTorch's
    biases receive the same gradient, so that a step of SGD moves their sum twice as far as it moves this bias.

    Args:
      init: ``"flax"`` or ``"torch"``.
      hidden: width of the layer's state.
    """
    if init == "torch":
        draw = uniform(hidden**-0.5)
        return {"kernel_init": draw, "recurrent_init": draw, "bias_init": sum_of_two(draw)}
    return {}


def uniform(bound: float) -> Initializer:
    """Draws from the uniform distribution between ``-bound`` and ``bound``."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def sum_of_two(draw: Initializer) -> Initializer:
    """Adds two independent draws."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        one, other = jax.random.split(key)
        return draw(one, shape, dtype) + draw(other, shape, dtype)

    return init
