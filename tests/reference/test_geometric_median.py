"""The geometric median against a float64 minimiser, in value and in place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_robust

from fedjax_drag import aggregators

SIZE = 6


@functools.partial(jax.jit, static_argnames="max_iterations")
def apply(G, smoothing, tolerance, max_iterations):
    """The update and the metrics."""
    rule = aggregators.geometric_median(smoothing=smoothing, tolerance=tolerance, max_iterations=max_iterations)
    zero = {"w": jnp.zeros(G.shape[1])}
    params, state = rule.apply(zero, {"w": G}, rule.init(zero))
    return params["w"], state.metrics


def solve(G, smoothing=1e-6, tolerance=1e-5, max_iterations=100):
    """The rule's median in float64, and its metrics; by default with its defaults."""
    update, metrics = apply(jnp.asarray(G, jnp.float32), smoothing, tolerance, max_iterations)
    return np.asarray(update, np.float64), metrics


def exact(G, smoothing=1e-6):
    G = np.asarray(np.asarray(G, np.float32), np.float64)
    return G, numpy_robust.geometric_median(G, smoothing=smoothing).point


def check(G, place=1e-5, smoothing=1e-6, **settings):
    """Value to 1e-6 of the best, place to ``place`` of the deltas' spread."""
    G, best = exact(G, smoothing)
    found, metrics = solve(G, smoothing, **settings)
    value = functools.partial(numpy_robust.distance_sum, G=G, p=np.full(len(G), 1 / len(G)), smoothing=smoothing)
    assert value(found) <= value(best) * (1 + 1e-6)
    spread = np.median(np.linalg.norm(G - best, axis=1)) or 1.0
    assert np.linalg.norm(found - best) <= place * spread + 2 * smoothing
    np.testing.assert_allclose(metrics["weight"].sum(), 1, rtol=1e-5)


def six_orders(rng, S):
    return rng.normal(size=(S, SIZE)) * np.logspace(-3, 3, S)[:, None]


def majority(rng, S):
    """The median is then the place of the majority; Weiszfeld's iteration from the mean must reach it."""
    G = rng.normal(size=(S, SIZE))
    G[: S // 2 + 2] = G[0]
    return G


def ties(rng, S):
    return rng.normal(size=(5, SIZE))[rng.integers(0, 5, S)]


def half_close_together(rng, S):
    G = rng.normal(size=(S, SIZE))
    G[: S // 2] = G[0] + 1e-4 * G[: S // 2]
    return G


@pytest.mark.sample(1)
@pytest.mark.parametrize("S", [1, 10, *(pytest.param(S, marks=pytest.mark.slow) for S in (2, 3, 41))])
def test_random(S):
    check(np.random.default_rng(S).normal(size=(S, SIZE)), place=1e-5 if S != 2 else 1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("S", [10, 41])
@pytest.mark.parametrize("deltas", [six_orders, majority, ties, half_close_together])
def test_where_iterations_are_slow(deltas, S):
    check(deltas(np.random.default_rng(S), S))


@pytest.mark.thorough
@pytest.mark.parametrize("far", [1e3, 1e12])
def test_many_far_away_in_one_place(far):
    G = np.random.default_rng(7).normal(size=(10, SIZE))
    G[:4] += far
    check(G)


@pytest.mark.thorough
@pytest.mark.parametrize("pull", [0.9, 0.999, 1.001, 1.1])
def test_a_delta_that_is_almost_the_median(pull):
    """The others draw at the first with this multiple of what it holds: below 1 it is the median, above it is not."""
    rng = np.random.default_rng(8)
    unit = np.vstack([np.eye(SIZE), -np.eye(SIZE)])  # in balance: two more draw as wanted
    angle = np.arccos(pull / 2)
    unit = np.vstack([unit, [np.cos(angle), np.sin(angle), *[0] * (SIZE - 2)]])
    unit = np.vstack([unit, [np.cos(angle), -np.sin(angle), *[0] * (SIZE - 2)]])
    G = np.vstack([np.zeros(SIZE), unit * rng.uniform(0.5, 2, (len(unit), 1))])
    check(G)
    found, _ = solve(G)
    assert (np.linalg.norm(found) < 1e-5) == (pull < 1)


@pytest.mark.thorough
def test_starting_at_a_delta_that_is_not_the_median():
    """The mean is a delta: the first steps of Weiszfeld's iteration are as short as the smoothing."""
    G = np.random.default_rng(9).normal(size=(11, SIZE)) + 2 * np.eye(1, SIZE)
    G[:6] *= 0.1
    G[0] = 0
    G[-1] = -G[:-1].sum(axis=0)
    check(G)
    assert np.linalg.norm(solve(G)[0]) > 0.01


@pytest.mark.thorough
def test_a_hundred_with_outliers_of_all_sizes():
    rng = np.random.default_rng(10)
    check(rng.normal(size=(100, SIZE)) * np.where(np.arange(100) < 30, 10.0 ** rng.uniform(0, 20, 100), 1.0)[:, None])


@pytest.mark.thorough
@pytest.mark.parametrize("smoothing", [0.1, 1.0, 100.0])
def test_wide_smoothing_is_minimised_as_defined(smoothing):
    """Far above all distances the rule is the mean."""
    G = np.random.default_rng(1).normal(size=(10, SIZE))
    check(G, smoothing=smoothing)
    if smoothing == 100.0:
        np.testing.assert_allclose(solve(G, smoothing)[0], G.mean(axis=0), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_extreme_norms(scale):
    """With the smoothing in proportion, the solution is in proportion; with the default it is the minimiser still."""
    G = np.random.default_rng(2).normal(size=(10, SIZE))
    reference = numpy_robust.geometric_median(G).point
    found, metrics = solve(scale * G, smoothing=1e-6 * scale)
    np.testing.assert_allclose(found / scale, reference, atol=1e-5)
    assert all(np.isfinite(value).all() for value in metrics.values())
    found, _ = solve(scale * G)
    expected = numpy_robust.geometric_median(scale * G).point
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1e3, 1e12, 1e30])
def test_a_huge_delta_moves_it_no_more_than_a_far_one(size):
    G = np.random.default_rng(3).normal(size=(10, SIZE))
    G[4] *= size
    best = exact(G)[1]
    found, _ = solve(G)
    np.testing.assert_allclose(found, best, atol=1e-5)


@pytest.mark.thorough
def test_collinear_symmetric_points_have_their_centre():
    G = np.outer([-3.0, -1.0, 0.0, 1.0, 3.0], np.arange(1.0, SIZE + 1)) + 2.0
    np.testing.assert_allclose(solve(G)[0], np.full(SIZE, 2.0), atol=1e-5)


@pytest.mark.thorough
def test_defaults_converge_and_say_so():
    G = np.random.default_rng(6).normal(size=(10, SIZE))
    rule = aggregators.geometric_median()
    zero = {"w": jnp.zeros(SIZE)}
    params, state = jax.jit(rule.apply)(zero, {"w": jnp.asarray(G, jnp.float32)}, rule.init(zero))
    best = exact(G)[1]
    assert 1 <= int(state.metrics["iterations"]) < 100
    assert 0 <= float(state.metrics["residual"]) <= 1e-5
    assert np.linalg.norm(np.asarray(params["w"]) - best) <= 1e-3 * np.linalg.norm(G - best, axis=1).mean()


@pytest.mark.thorough
def test_the_bound_on_steps_is_kept_and_the_residual_honest():
    G = np.random.default_rng(6).normal(size=(10, SIZE))
    _, metrics = solve(G, max_iterations=2)
    assert int(metrics["iterations"]) == 2
    assert float(metrics["residual"]) > 1e-4
