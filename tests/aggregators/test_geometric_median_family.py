"""What the geometric median and the rules built on it imply, and their derivatives."""

import functools

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from fedjax_drag.aggregators._autogm import autogm, fill
from fedjax_drag.aggregators._geomed import draw_groups, geomed
from fedjax_drag.aggregators._geometric_median import geometric_median
from fedjax_drag.aggregators._raga import raga
from fedjax_drag.aggregators._rfa import rfa
from fedjax_drag.kernels.geometric_median import spread

COHORT, SIZE = 5, 4
RULES = {"autogm": autogm, "geomed": geomed, "geometric_median": geometric_median, "raga": raga, "rfa": rfa}

entries = st.integers(-8, 8).map(lambda k: k / 4)
cohorts = hnp.arrays(np.float32, (COHORT, SIZE), elements=entries)
vectors = hnp.arrays(np.float32, (SIZE,), elements=entries)
bounded = settings(max_examples=25, deadline=None, derandomize=True)


@functools.cache
def compiled(name, **static):
    @jax.jit
    def update(G, hyper, extra):
        rule = RULES[name](**static, **hyper)
        zero = {"w": jnp.zeros(G.shape[1], G.dtype)}
        params, state = rule.apply(zero, {"w": G}, rule.init(zero), **extra)
        return params["w"], state.metrics

    return update


def run(name, G, hyper=None, extra=None, **static):
    update, metrics = compiled(name, **static)(jnp.asarray(G, jnp.float32), hyper or {}, extra or {})
    return np.asarray(update, np.float64), {key: np.asarray(value) for key, value in metrics.items()}


def value(z, G):
    """Sum of the distances."""
    return np.linalg.norm(np.asarray(G, np.float64) - z, axis=1).sum()


def assert_no_better(found, other, G):
    """In value, as the place is not unique where all deltas lie on a line."""
    assert value(found, G) <= value(other, G) * (1 + 1e-6) + 1e-5


@pytest.mark.slow
@bounded
@given(cohorts, vectors)
def test_nothing_nearby_and_no_delta_is_better(G, step):
    median, _ = run("geometric_median", G)
    for other in (*G, G.mean(axis=0), median + 1e-2 * step, median - 1e-2 * step):
        assert_no_better(median, other, G)


@pytest.mark.slow
@bounded
@given(cohorts, vectors, st.sampled_from([0.25, 3.0, 100.0]))
def test_follows_shifts_scalings_and_rotations(G, shift, factor):
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, SIZE)))[0]
    median, _ = run("geometric_median", G)
    moved = np.float32(factor) * (G + shift) @ turn
    after, _ = run("geometric_median", moved)
    assert_no_better(after / factor, (median + shift) @ turn, moved / factor)
    assert_no_better(after @ turn.T / factor - shift, median, G)


@pytest.mark.slow
@bounded
@given(vectors, vectors, st.integers(3, 5), st.sampled_from([1.0, 1e3, 1e12, 1e30]))
def test_a_majority_in_one_place_has_its_way(place, other, count, size):
    G = np.tile(np.float32(size) * other, (COHORT, 1))
    G[:count] = place
    for name in ("geometric_median", "raga"):
        update, metrics = run(name, G)
        np.testing.assert_allclose(update, place, atol=3e-6)
        assert metrics["weight"][:count].sum() >= 1 - 1e-5 or (place == other).all()


@pytest.mark.slow
@bounded
@given(vectors, hnp.arrays(np.float32, (2,), elements=st.integers(1, 8).map(float)), vectors)
def test_collinear_symmetric_points_have_their_centre(step, lengths, centre):
    a, b = sorted(lengths)
    G = centre + np.outer([-b, -a, 0, a, b], step).astype(np.float32)
    np.testing.assert_allclose(run("raga", G)[0], centre, atol=1e-5 * max(1.0, b * np.linalg.norm(step)))


def test_the_spread_is_the_median_distance():
    """Of clients that weigh the same and of others; a client of mass 0 has no part in it."""
    distance = jnp.array([9.0, 1.0, 4.0, 2.0, 3.0])
    assert spread(distance, jnp.full(5, 0.2), 1e-6) == 3.0
    assert spread(distance, jnp.array([0.6, 0.1, 0.1, 0.1, 0.1]), 1e-6) == 9.0
    assert spread(distance, jnp.array([0.0, 1.0, 1.0, 1.0, 0.0]) / 3, 1e-6) == 2.0
    assert spread(distance, jnp.full(5, 0.2), 5.0) == 5.0
    assert spread(distance[:4], jnp.full(4, 0.25), 1e-6) == 4.0, "the larger of the two in the middle"


@pytest.mark.slow
def test_in_large_models_a_few_passes_do():
    """Offsets that point everywhere: each step of Weiszfeld's leaves a tenth of the error."""
    G = np.random.default_rng(0).normal(size=(10, 1000))
    _, metrics = run("geometric_median", G)
    assert metrics["iterations"] <= 8
    assert metrics["residual"] <= 1e-6


@pytest.mark.thorough
def test_rfa_is_three_steps_and_with_enough_of_them_the_median():
    G = np.random.default_rng(2).normal(size=(COHORT, SIZE))
    assert run("rfa", G)[1]["iterations"] == 3
    many, metrics = run("rfa", G, {"tolerance": 1e-7}, max_iterations=500)
    np.testing.assert_allclose(many, run("geometric_median", G)[0], atol=1e-5)
    assert metrics["iterations"] < 500


KEY = {"key": jax.random.key(4)}


@pytest.mark.slow
@bounded
@given(cohorts)
def test_groups_of_one_and_of_all(G):
    apart, _ = run("geomed", G, extra=KEY, num_groups=COHORT)
    assert_no_better(apart, run("geometric_median", G)[0], G)
    together, metrics = run("geomed", G, extra=KEY, num_groups=1)
    np.testing.assert_allclose(together, G.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(metrics["weight"], 1 / COHORT, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("absent", [0, 1, 3, 6])
def test_groups_are_even_whoever_is_absent(absent):
    valid = np.random.default_rng(absent).permutation(7) >= absent
    seen = set()
    for seed in range(8):
        group = np.asarray(draw_groups(jax.random.key(seed), jnp.asarray(valid), 3))[valid]
        sizes = np.bincount(group, minlength=3)
        assert group.max() < 3
        assert sizes.max() - sizes.min() <= 1
        seen.add(tuple(group))
    assert len(seen) > 1 or absent == 6


@pytest.mark.slow
def test_geomed_is_the_median_of_its_groups_means():
    G = np.random.default_rng(3).normal(size=(7, SIZE))
    valid = jnp.arange(7) != 2
    for static, count in (({"num_groups": 4}, 4), ({}, 3)):
        group = np.asarray(draw_groups(KEY["key"], valid, count))
        means = np.array([G[(group == j) & np.asarray(valid)].mean(axis=0) for j in range(count)])
        update, metrics = run("geomed", G, extra={**KEY, "valid": valid}, **static)
        np.testing.assert_allclose(update, run("geometric_median", means)[0], atol=1e-5)
        np.testing.assert_allclose(metrics["weight"] @ G, update, atol=1e-5)


def test_geomed_refuses_more_groups_than_clients():
    with pytest.raises(ValueError, match=r"num_groups=9: must be at most S = 5"):
        run("geomed", np.zeros((COHORT, SIZE)), extra=KEY, num_groups=9)
    with pytest.raises(ValueError, match="num_groups=0"):
        geomed(num_groups=0)


water = jax.jit(fill)


@bounded
@given(
    hnp.arrays(np.float32, (COHORT,), elements=st.integers(0, 16).map(lambda k: k / 4)),
    hnp.arrays(bool, (COHORT,)),
    st.sampled_from([1e-30, 1e-6, 0.3, 1.0, 7.0, 1e4, 1e30]),
)
def test_water_filling_is_the_projection_on_the_simplex(distance, valid, lam):
    """There is one level ``eta`` of ``d + lam alpha`` where there is weight, and no ground below it elsewhere."""
    alpha = np.asarray(water(distance, valid, lam), np.float64)
    assert not alpha[~valid].any()
    if valid.any():
        np.testing.assert_allclose(alpha.sum(), 1, rtol=1e-6)
        level = distance + lam * alpha
        eta = level[alpha > 0].max()
        np.testing.assert_allclose(level[alpha > 0], eta, rtol=1e-5, atol=1e-6 * lam)
        assert (distance[valid & (alpha == 0)] >= eta * (1 - 1e-5)).all()


@pytest.mark.slow
@bounded
@given(cohorts)
def test_autogm_between_the_median_and_a_single_delta(G):
    """With a huge lambda all weights are equal; with a tiny one all weight is where the nearest deltas are."""
    equal, metrics = run("autogm", G, {"lam": 1e9})
    np.testing.assert_allclose(metrics["alpha"], 1 / COHORT, rtol=1e-5)
    assert_no_better(equal, run("geometric_median", G)[0], G)
    alone, metrics = run("autogm", G, {"lam": 1e-6})
    assert np.linalg.norm(G[metrics["alpha"] > 1e-3] - alone, axis=1).max() <= 1e-3


@pytest.mark.thorough
def test_autogm_leaves_out_what_is_far_away():
    G = np.random.default_rng(4).normal(size=(9, SIZE))
    G[:3] += 1e3
    update, metrics = run("autogm", G)
    assert not metrics["alpha"][:3].any()
    np.testing.assert_allclose(metrics["weight"] @ G, update, atol=1e-4)
    assert metrics["residual"] <= 1e-5
    assert np.linalg.norm(update) < 2


WIDE = np.random.default_rng(6).normal(size=(6, 3))
TIED = np.concatenate([WIDE[:2], np.tile(WIDE[3:4], (4, 1))])


def implicit(G, mass, nu, direction):
    """``d (direction . z) / d G`` by the implicit function theorem, in NumPy, at the median found."""
    z = np.asarray(compiled("geometric_median", tolerance=1e-13)(G, {"smoothing": nu}, {})[0])
    away = G - z
    d = np.linalg.norm(away, axis=1)
    weight = mass / np.maximum(d, nu)
    unit = np.where(d > nu, 1 / np.maximum(d, nu), 0)[:, None] * away
    blocks = weight[:, None, None] * (np.eye(len(z)) - unit[:, :, None] * unit[:, None, :])
    return np.einsum("mij,j->mi", blocks, np.linalg.solve(blocks.sum(0), direction))


@pytest.mark.slow
@pytest.mark.parametrize(("G", "nu"), [(WIDE, 1e-6), (WIDE, 1.5), (TIED, 1e-3)], ids=["generic", "wide", "tied"])
def test_gradient_is_that_of_the_minimiser(G, nu):
    direction = np.array([1.0, -2.0, 0.5])
    with jax.enable_x64(True):
        gradient = jax.grad(
            lambda G: compiled("geometric_median", tolerance=1e-13)(G, {"smoothing": nu}, {})[0] @ direction
        )
        found = np.asarray(gradient(jnp.asarray(G)))
        expected = implicit(G, np.full(len(G), 1 / len(G)), nu, direction)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "static", "hyper"),
    [
        ("rfa", {}, {}),
        ("geomed", {"num_groups": 3}, {}),
        ("autogm", {}, {"lam": 3.0}),
        ("raga", {}, {"smoothing": 1.0}),
    ],
    ids=["rfa", "geomed", "autogm", "raga"],
)
def test_gradients_are_those_of_finite_differences(name, static, hyper):
    direction, step = np.random.default_rng(8).normal(size=WIDE.shape), 1e-5
    extra = {"key": jax.random.key(0)}
    if name != "rfa":
        static = {**static, "tolerance": 1e-13}
    with jax.enable_x64(True):

        def objective(t):
            return compiled(name, **static)(WIDE + t * direction, hyper, extra)[0].sum()

        slope = float(jax.grad(objective)(0.0))
        difference = float(objective(step) - objective(-step)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), [("geometric_median", "smoothing"), ("autogm", "lam")])
def test_gradients_of_hyperparameters_under_vmap(name, argument):
    """Of the smoothing where it is wide, and of lambda."""
    values, step = jnp.asarray([1.0, 2.0, 20.0]), 1e-2
    G = jnp.asarray(WIDE, jnp.float32)

    def update(x):
        return compiled(name)(G, {argument: x}, {})[0].sum()

    both = jax.jit(jax.vmap(jax.value_and_grad(update)))
    slope = both(values)[1]
    difference = (both(values + step)[0] - both(values - step)[0]) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-2, atol=1e-3)


@functools.cache
def gradient_of(name):
    def update(G, valid):
        return compiled(name)(G, {}, {"valid": valid})[0].sum()

    return jax.jit(jax.grad(update))


@pytest.mark.slow
def test_gradients_stay_finite_where_the_median_is_not_unique():
    alone, two = np.arange(4) == 1, np.arange(4) < 2
    everybody = np.ones(4, bool)
    line = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 0.0])
    for G, valid in (
        (WIDE[:4], alone),
        (WIDE[:4], two),
        (np.tile(WIDE[:1], (4, 1)), everybody),
        (np.zeros((4, 3)), everybody),
        (line, everybody),
    ):
        gradient = np.asarray(gradient_of("geometric_median")(np.float32(G), valid))
        assert np.isfinite(gradient).all()
        assert not gradient[~valid].any()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["geometric_median", "rfa", "autogm"])
def test_absent_clients_pull_nothing_even_if_not_finite(name):
    G, absent = np.float32(WIDE[:4]), np.arange(4) == 2
    broken = np.where(absent[:, None], np.float32(np.nan), G)
    gradient = np.asarray(gradient_of(name)(broken, np.ones(4, bool)))
    np.testing.assert_allclose(gradient, gradient_of(name)(G, ~absent), rtol=1e-4, atol=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: autogm(lam=0.0), "lam=0.0"),
        (lambda: rfa(smoothing=0), "smoothing=0"),
        (lambda: raga(tolerance=-1), "tolerance=-1"),
        (lambda: rfa(max_iterations=0), "max_iterations=0"),
        (lambda: raga(weighting="example"), "did you mean 'examples'"),
        (lambda: geomed(smoothing=-1.0), "smoothing=-1.0"),
    ],
)
def test_arguments_out_of_range(build, message):
    with pytest.raises(ValueError, match=message):
        build()
