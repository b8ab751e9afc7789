"""Times the fast forms of ``fedjax_drag.kernels`` beside their reference implementations, in turn."""

import functools
import statistics
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.timing import Contestants, Row, in_turn, ratio, warm_up
from fedjax_drag import tree
from fedjax_drag.kernels import (
    distances,
    geometric_median,
    norms,
    order_statistics,
    pooled_convolution,
    pooling,
    sums,
)
from fedjax_drag.models.conv import conv2d

Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]
"""The fast form, the reference, and their arguments."""

STEPS = 5
"""Of a scan, in which a convolution is computed: its order of axes matters there."""


def cases(size: int, width: int) -> dict[str, Case]:
    """By name, the kernels for ``size`` clients with ``width`` parameters each, and those of images."""
    key = jax.random.key(0)
    deltas = {"a": jax.random.normal(key, (size, width))}
    everybody, weight = jnp.ones(size, bool), jnp.ones(size) / size
    images = jax.random.normal(key, (STEPS, 64, 28, 28, 1))
    kernel, bias, pads = jax.random.normal(key, (5, 5, 1, 6)), jnp.zeros(6), (2, 2)
    small = {"a": deltas["a"][:, : width // 10]}

    def median(deltas: Any) -> Any:
        return order_statistics.middle(deltas, everybody, jnp.int32((size - 1) // 2))

    def above(deltas: Any) -> Any:
        return order_statistics.count_entries(lambda g: g > 0, deltas)

    def sorted_median(deltas: Any) -> Any:
        return order_statistics.reference(deltas["a"], everybody, jnp.int32((size - 1) // 2))

    solved = functools.partial(geometric_median.geometric_median_of, smoothing=1e-6, tolerance=1e-5, max_iterations=100)
    plain = functools.partial(geometric_median.reference, smoothing=1e-6, steps=30)
    windows, in_steps = pooled_convolution.pooled_window_product, pooled_convolution.reference
    return {
        f"norms {size}": (norms.norms, norms.reference, (deltas,)),
        f"norms {size}, beside one pass": (norms.norms, lambda deltas: norms._measure_once(deltas)[0], (deltas,)),
        f"inner products {size}": (
            distances.gram,
            lambda d, s: distances._gram_of(d["a"], s),
            (deltas, weight),
        ),
        f"counts {size}": (above, functools.partial(tree.row_sums, lambda g: (g > 0).astype(jnp.int32)), (deltas,)),
        f"weighted sum {size}": (sums.weighted_sum, sums.reference, (weight, deltas)),
        f"median {size}": (median, sorted_median, (deltas,)),
        f"distances {size}, a tenth": (distances.distances, distances.reference, (small,)),
        f"geometric median {size}": (solved, plain, (deltas, weight)),
        "convolution in a scan": (
            _trained(functools.partial(conv2d, form="looped")),
            _trained(functools.partial(conv2d, form="grouped")),
            (images, kernel),
        ),
        "pooled convolution": (
            _trained(lambda x, kernel: windows(x, kernel, bias, pads)),
            _trained(lambda x, kernel: in_steps(x, kernel, bias, pads)),
            (images, kernel),
        ),
        "max pooling": (_slope(pooling.max_pool), _slope(lambda x: nn.max_pool(x, (2, 2), (2, 2))), (images[0],)),
    }


def run(repeats: int, size: int, width: int) -> list[Row]:
    """A row for each kernel; the ratio is the time of the reference to that of the fast form."""
    rows: list[Row] = []
    for name, (fast, reference, arguments) in cases(size, width).items():
        contestants: Contestants = {
            form: functools.partial(_wait_for, jax.jit(function), arguments)
            for form, function in (("fast", fast), ("reference", reference))
        }
        warm_up(contestants)
        times = in_turn(contestants, repeats)
        middle = {f"{form}_ms": statistics.median(times[form]) for form in times}
        rows.append({"kernel": name, **middle, "ratio": ratio(times, "reference", "fast")})
    return rows


def _wait_for(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    jax.block_until_ready(function(*arguments))


def _slope(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    return jax.grad(lambda x: jnp.sin(function(x)).sum())


def _trained(convolve: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Steps of gradient descent on the kernel, one for each batch of images."""

    def train(images: jax.Array, kernel: jax.Array) -> jax.Array:
        def step(kernel: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return kernel - 1e-3 * jax.grad(lambda kernel: jnp.sin(convolve(x, kernel)).sum())(kernel), None

        return jax.lax.scan(step, kernel, images)[0]

    return train
