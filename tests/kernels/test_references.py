"""Each kernel beside the plain implementation that says what it computes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.kernels import (
    distances,
    geometric_median,
    norms,
    order_statistics,
    pooled_convolution,
    sums,
)


@pytest.mark.parametrize("size", [10, pytest.param(40, marks=pytest.mark.thorough)])
def test_of_deltas(size):
    rng = np.random.default_rng(size)
    deltas = {"a": rng.normal(size=(size, 5, 6)).astype(np.float32), "b": rng.normal(size=(size, 9)).astype(np.float32)}
    weight = np.float32(rng.uniform(size=size))
    close = functools.partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-5)
    close(jax.jit(norms.norms)(deltas), norms.reference(deltas))
    close(jax.jit(distances.distances)(deltas), distances.reference(deltas))
    close(jax.jit(sums.weighted_sum)(weight, deltas), sums.reference(weight, deltas))
    for solver in (geometric_median.geometric_median_of, geometric_median.weiszfeld):
        found = jax.jit(solver, static_argnums=4)(deltas, weight, 1e-6, 1e-6, 200).point
        close(found, jax.jit(geometric_median.reference)(deltas, weight, 1e-6), atol=1e-4)


@pytest.mark.parametrize("form", ["_by_network", "_by_counting"])
@pytest.mark.parametrize("size", [9, pytest.param(20, marks=pytest.mark.thorough)])
def test_of_order_statistics_to_the_bit(size, form):
    rng = np.random.default_rng(size)
    G = rng.normal(size=(size, 230)).astype(np.float32)
    G[:, :40] = np.round(G[:, :40])
    G[:, 60:70] = rng.choice(np.float32([-0.0, 0.0, 1.0]), (size, 10))
    valid = np.arange(size) % 5 != 2
    finds = getattr(order_statistics, form), order_statistics.reference
    fast, plain = (jax.jit(functools.partial(order_statistics._middle, find)) for find in finds)
    for trim in (0, 2, (valid.sum() - 1) // 2):
        (mean, *ends), (expected, *others) = fast(G, valid, trim), plain(G, valid, trim)
        chex.assert_trees_all_equal(ends, others)
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "k", "pads"), [((9, 8), 5, (0, 0)), ((7, 6), 3, (1, 1))])
def test_of_a_pooled_convolution(size, k, pads):
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, *size, 2), (k, k, 2, 4)))
    for relu in (False, True):
        compute = [functools.partial(form, pads=pads, relu=relu) for form in FORMS]
        chex.assert_trees_all_close(*(form(x, kernel, jnp.ones(4)) for form in compute), rtol=1e-4, atol=1e-4)


FORMS = (pooled_convolution.pooled_window_product, pooled_convolution.reference)
