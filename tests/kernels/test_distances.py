"""Distances and inner products against float64, on input that loses digits, overflows or repeats itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.kernels import distances as module
from fedjax_drag.kernels.distances import distances, gram, gram_around, pairs

COHORT, SIZE = 9, 50


def draw(seed=0):
    return np.random.default_rng(seed).normal(size=(COHORT, SIZE))


def with_row(G, row, index=2):
    G = G.copy()
    G[index] = row
    return G


COMMON = 1e3 * draw(1)[0]
TWICE = draw(2)[[0, 0, 0, 1, 1, 2, 3, 4, 4]]
INPUTS = {
    "random": draw(),
    "beside a large common part": COMMON + draw(),
    "beside a large constant": 1e3 + draw(),
    "six orders of length": draw() * np.logspace(-3, 3, COHORT)[:, None],
    "tied": TWICE,
    "tied beside a large common part": COMMON + TWICE,
    "nearly tied": TWICE + 1e-5 * draw(3),
    "clusters within clusters": COMMON + TWICE + 1e-3 * draw(3)[[0, 1, 1, 2, 2, 3, 4, 5, 6]],
    "along a curve": np.cos(np.linspace(0, 1, COHORT))[:, None] * draw(4)[0] + np.linspace(0, 1, COHORT)[:, None],
    "similar": draw(5)[0] + 0.25 * draw(),
    "one of 1e30": with_row(COMMON + draw(), 1e30 * draw(6)[0]),
    "one of zero, one opposite": with_row(with_row(COMMON + draw(), 0), -COMMON, 3),
    "all tiny": 1e-30 * draw(),
    "all huge": 1e30 * draw(),
    "equal": np.repeat(draw()[:1], COHORT, axis=0),
    "equal but for one entry": np.repeat(draw()[:1], COHORT, axis=0) + 1e-3 * np.eye(COHORT, SIZE, k=40),
    "zero": np.zeros((COHORT, SIZE)),
}


def as_tree(G, dtype=np.float32):
    return {"a": np.asarray(G[:, :30], dtype).reshape(-1, 5, 6), "b": np.asarray(G[:, 30:], dtype)}


def exact(G):
    G = np.asarray(G, np.float64)
    return np.array([np.linalg.norm(G - g, axis=1) for g in G])


measure = jax.jit(distances)


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", INPUTS)
def test_distances_agree_with_float64(kind):
    G = INPUTS[kind].astype(np.float32)
    measured = np.asarray(measure(as_tree(G)))
    np.testing.assert_allclose(measured, exact(G), rtol=3e-6)
    np.testing.assert_array_equal(measured, measured.T)
    assert not measured.diagonal().any()


def test_rows_that_are_not_finite_have_distance_zero_and_touch_no_others():
    G = (COMMON + draw()).astype(np.float32)
    expected = exact(G)
    G[1], G[4, 3], G[7, 0] = np.nan, np.inf, -np.inf
    expected[[1, 4, 7]] = expected[:, [1, 4, 7]] = 0
    np.testing.assert_allclose(measure(as_tree(G)), expected, rtol=3e-6)


def test_half_precision_is_compared_in_float32():
    G = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), as_tree(COMMON + 30 * draw()))
    rows = np.concatenate([np.asarray(leaf, np.float64).reshape(COHORT, -1) for leaf in jax.tree.leaves(G)], axis=1)
    measured = measure(G)
    assert measured.dtype == jnp.float32
    np.testing.assert_allclose(measured, exact(rows), rtol=3e-6)


@pytest.mark.thorough
def test_double_precision_stays():
    with jax.enable_x64(True):
        G = COMMON + TWICE + 1e-9 * draw()
        measured = jax.jit(distances)(as_tree(G, np.float64))
        assert measured.dtype == jnp.float64
        np.testing.assert_allclose(measured, exact(G), rtol=1e-12)


@pytest.mark.thorough
def test_long_rows_are_multiplied_in_blocks(monkeypatch):
    """Whole blocks and what is left of them, for each leaf."""
    monkeypatch.setattr("fedjax_drag.kernels.distances._BLOCK", 7)
    G = draw().astype(np.float32)
    products = jax.jit(lambda deltas: gram(deltas, jnp.ones(COHORT)))(as_tree(G))
    np.testing.assert_allclose(products, G.astype(np.float64) @ G.T, rtol=1e-5, atol=1e-5)
    G += COMMON.astype(np.float32)
    np.testing.assert_allclose(jax.jit(lambda deltas: distances(deltas))(as_tree(G)), exact(G), rtol=3e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("form", [module._gram_in_tiles, module._gram_of], ids=["cpu", "accelerators"])
def test_both_forms_of_the_product(monkeypatch, form):
    """Several tiles, the last one smaller; whole blocks and what is left; around a center far from zero."""
    monkeypatch.setattr(module, "_TILE", 4)
    monkeypatch.setattr(module, "_TILED_BLOCK", 7)
    G, scale = (COMMON + draw()).astype(np.float32), np.linspace(0, 2, COHORT).astype(np.float32)
    center = COMMON.astype(np.float32)
    away = scale[:, None] * (G.astype(np.float64) - center)
    G[0] = np.inf  # of scale 0
    products = np.asarray(jax.jit(form)(G, scale, center[None]))
    np.testing.assert_allclose(products, away @ away.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jax.jit(form)(G - center, scale), away @ away.T, rtol=1e-5, atol=1e-5)


def test_inner_products_around_a_center_keep_their_digits():
    G, center = (COMMON + draw()).astype(np.float32), COMMON.astype(np.float32)
    middle = jax.tree.map(lambda leaf: leaf[0], as_tree(center[None]))
    away = G.astype(np.float64) - center
    np.testing.assert_allclose(
        jax.jit(gram_around)(middle, as_tree(G), jnp.ones(COHORT)), away @ away.T, rtol=1e-5, atol=1e-5
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["similar", "one of 1e30", "six orders of length"])
def test_pairs_of_scaled_rows(kind):
    """Distances and cosines as of the rows that are multiplied before, here all to length 1."""
    G = INPUTS[kind].astype(np.float32)
    scale = np.float32(1 / np.linalg.norm(G.astype(np.float64), axis=1))
    unit = G.astype(np.float64) * scale[:, None]
    measured = jax.jit(pairs)(as_tree(G), scale)  # products round before they differ
    np.testing.assert_allclose(measured.distance, exact(unit), rtol=3e-6, atol=2e-7)
    np.testing.assert_allclose(measured.cosine, unit @ unit.T, atol=1e-6)


def test_equal_rows_of_different_scale_are_apart():
    G = np.repeat(draw()[:1], COHORT, axis=0).astype(np.float32)
    scale = np.float32([1, 1, 1 + 1e-3, 2, 1, 2, 1, 1, 3])
    measured = np.asarray(jax.jit(pairs)(as_tree(G), scale).distance)
    scaled = G.astype(np.float64) * scale[:, None]
    np.testing.assert_allclose(measured, exact(scaled), rtol=3e-4)  # products round before they differ


def test_pairs_without_a_direction_have_cosine_zero():
    G = draw().astype(np.float32)
    G[1], G[4, 3], G[7] = np.nan, np.inf, 0
    cosine = np.asarray(jax.jit(pairs)(as_tree(G)).cosine)
    assert not cosine[[1, 4, 7]].any()
    assert not cosine[:, [1, 4, 7]].any()


@pytest.mark.thorough
def test_gradient_of_distances_of_scaled_rows():
    G, rng = draw().astype(np.float32), np.random.default_rng(3)
    scale, weights = (np.float32(rng.uniform(0.5, 2, COHORT)), np.float32(rng.normal(size=(COHORT, COHORT))))

    def ours(rows, scale):
        return (weights * pairs({"g": rows}, scale).distance).sum()

    def multiplied(rows, scale):
        return (weights * distances({"g": scale[:, None] * rows})).sum()

    for found, expected in zip(jax.grad(ours, (0, 1))(G, scale), jax.grad(multiplied, (0, 1))(G, scale), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_vmap_equals_a_loop():
    kinds = ["random", "tied beside a large common part", "one of 1e30"]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(as_tree(INPUTS[kind]) for kind in kinds))
    for measured, kind in zip(jax.jit(jax.vmap(distances))(stacked), kinds, strict=True):
        np.testing.assert_allclose(measured, exact(INPUTS[kind].astype(np.float32)), rtol=3e-6)


slope = jax.jit(jax.grad(lambda deltas, weights: (weights * distances(deltas)).sum()))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["random", "six orders of length", "tied", "zero", "all huge", "one of 1e30"])
def test_gradient_of_distances(kind):
    """``sum_j w_ij (g_i - g_j) / d_ij``, and no part from clients that are equal."""
    G, weights = INPUTS[kind].astype(np.float32), np.random.default_rng(3).normal(size=(COHORT, COHORT))
    found = slope(as_tree(G), np.float32(weights))
    found = np.concatenate([np.asarray(leaf, np.float64).reshape(COHORT, -1) for leaf in jax.tree.leaves(found)], 1)
    pull = np.divide(weights + weights.T, exact(G), out=np.zeros_like(weights), where=exact(G) > 0)
    expected = pull.sum(1)[:, None] * G.astype(np.float64) - pull @ G.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_gradient_of_inner_products():
    G, scale = draw().astype(np.float32), np.random.default_rng(4).uniform(0.5, 2, COHORT).astype(np.float32)
    weights = np.random.default_rng(5).normal(size=(COHORT, COHORT)).astype(np.float32)

    def plain(rows, scale):
        return (weights * ((scale[:, None] * rows) @ (scale[:, None] * rows).T)).sum()

    def ours(rows, scale):
        return (weights * gram({"g": rows}, scale)).sum()

    for found, expected in zip(jax.grad(ours, (0, 1))(G, scale), jax.grad(plain, (0, 1))(G, scale), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_row_of_scale_zero_is_absent_from_the_inner_products():
    G = draw().astype(np.float32)
    G[3] = np.nan
    scale = (np.arange(COHORT) != 3).astype(np.float32)
    products = np.asarray(gram(as_tree(G), scale))
    assert not products[3].any()
    assert not products[:, 3].any()
    assert np.isfinite(products).all()
