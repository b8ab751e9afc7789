"""The contract of compressors."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag.compression import Compressor
from fedjax_drag.compression._compressor import COMPRESSOR, Memory, Message
from fedjax_drag.testing._promises import (
    assert_close,
    assert_finite,
    assert_like,
    assert_pure,
    check,
    parameters,
    stacked,
)

_DRAWS = 64


@dataclasses.dataclass(frozen=True)
class _CompressorBench:
    """A compressor and its test input.

    Attributes:
      compressor: under test.
      like: a message, of which only shapes and dtypes count.
    """

    compressor: Compressor
    like: Message

    @functools.cached_property
    def send(self) -> Callable[[Message, Memory, Any], tuple[Message, Memory]]:
        """``compress``, compiled once."""
        return jax.jit(self.compressor.compress)

    def message(self, seed: int) -> Message:
        """Random numbers."""
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), self.like)

    def sent(self, seed: int) -> tuple[Message, Memory]:
        """A first message and the memory after it."""
        return self.send(self.message(seed), self.compressor.init(self.like), jax.random.key(seed))


def check_compressor(compressor: Compressor, *, message: Message = None) -> None:
    """Checks the behaviour of a compressor that a run relies on.

    The formula is not checked, but that ``compress`` returns a message and a memory like those it was given, that it is
    pure, works under ``jit`` and ``vmap``, and stays finite from message to message; that ``num_bytes`` is known from
    shapes; and, where errors are fed back, that the compressor inside has an error shorter than its message, on the
    average over draws.

    Args:
      compressor: the compressor to check.
      message: a message like those of the run; default a small pytree of float32 arrays.

    Raises:
      AssertionError: names every broken promise, one per line.
      ValueError: if ``compressor`` is something else.
    """
    COMPRESSOR.check("compressor", compressor)
    check(_CompressorBench(compressor, jax.tree.map(jnp.asarray, parameters(message))), _PROMISES)


def _keeps_shapes(bench: _CompressorBench) -> None:
    """What is decompressed is like the message, and the memory like the one before."""
    memory = bench.compressor.init(bench.like)
    received, after = jax.eval_shape(bench.compressor.compress, bench.like, memory, jax.random.key(0))
    assert_like("compress returns a message", received, bench.like)
    assert_like("compress returns a memory", after, memory)


def _knows_its_bytes(bench: _CompressorBench) -> None:
    """The bytes are a positive integer that shapes decide."""
    sizes = {bench.compressor.num_bytes(x) for x in (bench.like, jax.eval_shape(lambda: bench.like))}
    assert len(sizes) == 1, f"num_bytes returns {sizes} for arrays and for their shapes"
    (size,) = sizes
    assert isinstance(size, int | np.integer), f"num_bytes returns a {type(size).__name__}"
    assert size > 0, f"num_bytes returns {size}"
    jax.eval_shape(lambda: bench.compressor.init(jax.eval_shape(lambda: bench.like)))


def _repeats(bench: _CompressorBench) -> None:
    """The same input gives the same bits."""
    memory = bench.compressor.init(bench.like)
    assert_pure(bench.compressor.compress, bench.message(0), memory, jax.random.key(0))


def _stays_finite(bench: _CompressorBench) -> None:
    """Message and memory are finite from message to message, also of zeros."""
    memory = bench.compressor.init(bench.like)
    for index in range(8):
        message = jax.tree.map(jnp.zeros_like, bench.like) if index % 4 == 0 else bench.message(index)
        received, memory = bench.send(message, memory, jax.random.key(index))
        assert_finite({"message": received, "memory": memory})


def _runs_for_many_clients(bench: _CompressorBench) -> None:
    """Vmap over clients equals one after another."""
    seeds = range(3)
    memory = stacked([bench.compressor.init(bench.like)] * len(seeds))
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    together = jax.jit(jax.vmap(bench.compressor.compress))(stacked([bench.message(s) for s in seeds]), memory, keys)
    assert_close(together, stacked([bench.sent(seed) for seed in seeds]))


def _contracts(bench: _CompressorBench) -> None:
    """Where errors are fed back, they are shorter than the message on the average."""
    inner = bench.compressor.contraction
    if inner is None:
        return
    message = bench.message(1)

    def squares(key: Any) -> Any:
        received, _ = inner.compress(message, inner.init(bench.like), key)
        return sum(jnp.square(x - y).sum() for x, y in zip(jax.tree.leaves(received), whole, strict=True))

    whole = jax.tree.leaves(message)
    error = jax.jit(jax.vmap(squares))(jax.random.split(jax.random.key(0), _DRAWS)).mean()
    length = sum(float(jnp.square(x).sum()) for x in whole)
    assert error < length, f"the mean squared error is {float(error) / length:.3g} times the squared length"


_PROMISES = (_keeps_shapes, _knows_its_bytes, _repeats, _stays_finite, _runs_for_many_clients, _contracts)
