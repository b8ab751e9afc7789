"""Character-level LSTM: embedding, stacked LSTM layers, logits of the next character.

The recurrence of a layer is one scan over time that contains the sequential part only: the input's part of all gates at
all times is one matrix product before it, and the gradient of the recurrent kernel is one matrix product after the
backward scan. Automatic differentiation would add up that gradient, as large as the kernel, in every step. Reverse mode
nests to any order; forward mode is not offered.

Milliseconds of CPU time for forward and backward pass of the default model on 80 characters (one core, least of
several; of five clients in turn 87 each with batch 10, under ``vmap`` 127):

| batch | this | the same scan, automatic gradient | ``flax.linen.RNN`` | both layers in one scan, automatic |
| --- | --- | --- | --- | --- |
| 10 | 92 | 147 | 177 | 187 |
| 64 | 630 | 736 | 678 | 632 |
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from fedjax_drag import checks
from fedjax_drag.models import initialisation as start
from fedjax_drag.models.initialisation import Initializer


@jax.custom_vjp
def recurrence(
    kernel: Float[Array, "hidden 4*hidden"], projected: Float[Array, "length batch 4*hidden"]
) -> Float[Array, "length batch hidden"]:
    """Hidden states of an LSTM layer that begins with zeros (Hochreiter and Schmidhuber, 1997; Gers et al., 2000).

    With the gates ``(i, f, o, g)`` side by side in the last axis: ``z_t = projected_t + h_{t-1} kernel``,
    ``c_t = sigmoid(f_t) c_{t-1} + sigmoid(i_t) tanh(g_t)`` and ``h_t = sigmoid(o_t) tanh(c_t)``.

    Args:
      kernel: recurrent part of the gates.
      projected: the input's part of the gates, bias included.

    Returns:
      The hidden states ``h``.
    """
    return _forward(kernel, projected)[0]


_Saved = tuple[jax.Array, ...]
"""What the backward pass needs: kernel, states and cells, gates ``(i, f, o)``, and the new values ``tanh(g)``."""


def _forward(kernel: jax.Array, projected: jax.Array) -> tuple[jax.Array, _Saved]:
    hidden = kernel.shape[0]

    def step(carry: tuple[jax.Array, jax.Array], projected: jax.Array) -> tuple[Any, Any]:
        h, c = carry
        z = projected + h @ kernel
        gates, new = jax.nn.sigmoid(z[:, : 3 * hidden]), jnp.tanh(z[:, 3 * hidden :])
        i, f, o = jnp.split(gates, 3, axis=1)
        c = f * c + i * new
        h = o * jnp.tanh(c)
        return (h, c), (h, c, gates, new)

    zeros = jnp.zeros((projected.shape[1], hidden), projected.dtype)
    _, (h, c, gates, new) = lax.scan(step, (zeros, zeros), projected)
    return h, (kernel, h, c, gates, new)


def _backward(saved: _Saved, dh: jax.Array) -> tuple[jax.Array, jax.Array]:
    kernel, h, c, gates, new = saved
    transposed = kernel.T

    def step(carry: tuple[jax.Array, jax.Array], now: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        dh_later, dc = carry
        dh, c, c_before, gates, new = now
        i, f, o = jnp.split(gates, 3, axis=1)
        squashed = jnp.tanh(c)
        dh = dh + dh_later
        dc = dc + dh * o * (1 - squashed**2)
        parts = (
            dc * new * i * (1 - i),
            dc * c_before * f * (1 - f),
            dh * squashed * o * (1 - o),
            dc * i * (1 - new**2),
        )
        dz = jnp.concatenate(parts, axis=1)
        return (dz @ transposed, dc * f), dz

    zeros = jnp.zeros_like(dh[0])
    _, dz = lax.scan(step, (zeros, zeros), (dh, c, _before(c), gates, new), reverse=True)
    return jnp.einsum("lbh,lbz->hz", _before(h), dz), dz


def _before(states: jax.Array) -> jax.Array:
    """The states one step earlier; zeros at the beginning."""
    return jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])


recurrence.defvjp(_forward, _backward)


def _orthogonal_gates(key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> jax.Array:
    square = (shape[0], shape[0])
    return jnp.concatenate([nn.initializers.orthogonal()(k, square, dtype) for k in jax.random.split(key, 4)], axis=1)


def _forget_nothing(key: jax.Array, shape: tuple[int], dtype: Any = jnp.float32) -> jax.Array:
    hidden = shape[0] // 4
    return jnp.zeros(shape, dtype).at[hidden : 2 * hidden].set(1)


class LSTMLayer(nn.Module):
    """An LSTM layer.

    Attributes:
      hidden: H, the width of its state.
      kernel_init: initialiser of the kernel.
      recurrent_init: initialiser of the recurrent kernel; default orthogonal, gate by gate.
      bias_init: initialiser of the bias; default 1 for the forget gates and 0 for the others.
    """

    hidden: int
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_init: Initializer = _orthogonal_gates
    bias_init: Initializer = _forget_nothing

    @nn.compact
    def __call__(self, x: Float[Array, "length batch inputs"]) -> Float[Array, "length batch hidden"]:
        """Maps a sequence to the hidden states."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], 4 * self.hidden))
        recurrent = self.param("recurrent_kernel", self.recurrent_init, (self.hidden, 4 * self.hidden))
        bias = self.param("bias", self.bias_init, (4 * self.hidden,))
        return recurrence(recurrent, x @ kernel + bias)


class LSTM(nn.Module):
    """Embedding, LSTM layers, and a dense layer on the last state of the last layer, or on each.

    Attributes:
      num_classes: V, number of different tokens, and of logits.
      embedding: length of the vector of a token.
      hidden: H, the width of each layer's state.
      layers: number of LSTM layers.
      initialisation: ``"flax"`` or ``"torch"``.
      return_sequences: whether there are logits for each position or for the last only.
    """

    num_classes: int
    embedding: int
    hidden: int
    layers: int
    initialisation: str = "flax"
    return_sequences: bool = False

    @nn.compact
    def __call__(self, x: Int[Array, "batch length"]) -> Float[Array, "batch *length classes"]:
        """Maps tokens, integers in ``[0, V)``, to logits of the next ones."""
        if x.ndim != 2 or not x.shape[1] or not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(f"x.shape={x.shape}, x.dtype={x.dtype}: this LSTM needs integer tokens [B, L], L >= 1")
        init = self.initialisation
        states = nn.Embed(self.num_classes, self.embedding, **start.embedding(init))(x.T)  # time first, for the scans
        for _ in range(self.layers):
            states = LSTMLayer(self.hidden, **start.lstm(init, self.hidden))(states)
        states = states.swapaxes(0, 1) if self.return_sequences else states[-1]
        return nn.Dense(self.num_classes, **start.layer(init, self.hidden))(states)


def lstm(
    num_classes: int = 80,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    init: str = "flax",
    return_sequences: bool = False,
) -> LSTM:
    """Builds the next-character model of LEAF and of McMahan et al. (2017).

    With the defaults it has 817,872 parameters. There is one bias for each gate, where some libraries have two.

    Args:
      num_classes: V, number of different tokens, and of logits; at least 1.
      embedding: length of the vector of a token, at least 1.
      hidden: width of each layer's state, at least 1.
      layers: number of LSTM layers, at least 1.
      init: how its parameters begin. ``"flax"``: kernels as in ``flax.linen.LSTMCell``, biases 0 except those of the
        forget gates, which are 1 (Jozefowicz et al., 2015). ``"torch"``: all parameters of the LSTM layers uniform in
        ``+-1/sqrt(hidden)``; PyTorch has two biases for each gate, and the one here begins as their sum
        (:func:`fedjax_drag.models.initialisation.lstm`).
      return_sequences: True for logits after each position, ``[B, L, V]``, as for targets ``[B, L]``.

    Returns:
      A Flax module: tokens ``[B, L]``, integers in ``[0, V)``, to logits ``[B, V]`` of the token after the last.

    Raises:
      ValueError: if a count is not a positive integer, or ``init`` is not allowed; ``"normal"`` is not, since
        NIID-Bench, its source, has no recurrent network.

    References:
      Caldas et al., LEAF: A benchmark for federated settings, 2018.
      McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017.
    """
    for name, value in (("embedding", embedding), ("hidden", hidden), ("layers", layers)):
        checks.count(name, value, 1)
    checks.count("num_classes", num_classes, 1)
    checks.one_of("init", init, ("flax", "torch"))
    return LSTM(num_classes, embedding, hidden, layers, init, bool(return_sequences))
