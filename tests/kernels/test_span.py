"""Points in the span of the deltas against float64: distances, what is uncertain of them, and the median."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag import tree
from fedjax_drag.kernels.geometric_median import closest_to_zero, converge_in, geometric_median_of
from fedjax_drag.kernels.span import span_around

COHORT, SIZE = 12, 200
NU, TOLERANCE = 1e-6, 1e-5


def draw(seed=0):
    return np.random.default_rng(seed).normal(size=(COHORT, SIZE))


def with_rows(G, rows, values):
    G = G.copy()
    G[rows] = values
    return G


INPUTS = {
    "random": draw(),
    "beside a common part": 1e2 * draw(1)[0] + draw(),
    "a third far away": with_rows(draw(), slice(4), 1e6 * draw(2)[:4]),
    "a third opposite": with_rows(draw() + draw(1)[0], slice(4), -10 * draw(1)[0] + draw()[:4]),
    "a third equal": with_rows(draw(), slice(4), draw(2)[0]),
    "one of 2e31": with_rows(draw(), 3, 2e31 * draw(2)[0] / np.linalg.norm(draw(2)[0])),
    "one in the mean": with_rows(draw(), 3, np.delete(draw(), 3, 0).mean(0)),
    "all tiny": 1e-20 * draw(),
}
LOST = {"one of 2e31", "one in the mean"}
SLOW = {"a third opposite", "a third equal"}


def as_tree(G):
    return {"a": np.float32(G[:, :50]).reshape(-1, 5, 10), "b": np.float32(G[:, 50:])}


def flat(point):
    return np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(point)])


def exact_median(G, smoothing):
    z = G.mean(0)
    for _ in range(2000):
        weight = 1 / np.maximum(np.linalg.norm(G - z, axis=1), smoothing)
        z = weight @ G / weight.sum()
    return z


@jax.jit
def in_span(deltas, mass, smoothing):
    span = span_around(deltas, closest_to_zero(deltas, mass, smoothing))
    near, _ = converge_in(span, mass, smoothing, TOLERANCE, 100, mass)
    point = near.median.point
    distance = span.distances(point)
    return point, distance, span.doubt(point, distance), span.length(point - mass), near.settled


median = jax.jit(lambda deltas, mass, smoothing: geometric_median_of(deltas, mass, smoothing, TOLERANCE, 100))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", INPUTS)
def test_the_median_in_the_span_is_sure_where_its_digits_are_kept(kind):
    """It then has the place that float64 finds; otherwise differences of the deltas find it."""
    nu = NU * 1e-20 if kind == "all tiny" else NU
    G = np.float64(np.float32(INPUTS[kind]))
    mass = jnp.full(COHORT, 1 / COHORT)
    weight, distance, doubt, moved, sure = in_span(as_tree(G), mass, nu)
    assert sure == (kind not in LOST | SLOW)
    expected = exact_median(G, nu)
    spread = np.median(np.linalg.norm(G - expected, axis=1))
    # Sums of the deltas round in float32 with what all have in common.
    slack = 2 * TOLERANCE * spread + 1e-6 * np.linalg.norm(np.median(G, axis=0))
    assert np.linalg.norm(flat(median(as_tree(G), mass, nu).point) - expected) <= slack
    if sure:
        point = np.asarray(weight, np.float64) @ G
        assert np.linalg.norm(point - expected) <= slack
        true = np.linalg.norm(G - point / np.asarray(weight, np.float64).sum(), axis=1)
        np.testing.assert_allclose(distance, true, rtol=1e-5)
        assert (np.abs(np.asarray(distance) / true - 1) <= 2 * np.asarray(doubt)).all()
        np.testing.assert_allclose(moved, np.linalg.norm(point - G.mean(0)), rtol=1e-3)


@pytest.mark.thorough
def test_a_point_near_a_delta_is_in_doubt():
    """Its distance is a difference of far larger numbers, which the others' are not."""
    G = np.float32(draw())
    span = span_around(as_tree(G), jnp.full(COHORT, 1 / COHORT))
    weight = np.full(COHORT, 1e-4)
    weight[5] = 1 - 1e-4 * (COHORT - 1)
    doubt = np.asarray(span.doubt(jnp.asarray(weight, jnp.float32), span.distances(jnp.asarray(weight, jnp.float32))))
    assert doubt[5] > 1e-3
    assert np.delete(doubt, 5).max() < 1e-5


def test_absent_clients_count_nothing_whatever_they_hold():
    G = np.float32(draw())
    G[2], G[7, 0] = np.nan, np.inf
    present = np.delete(G, [2, 7], 0)
    mass = np.float32(np.isin(np.arange(COHORT), [2, 7], invert=True)) / len(present)
    weight, distance, *_, sure = in_span(as_tree(G), mass, NU)
    assert sure
    assert not np.asarray(weight)[[2, 7]].any()
    assert np.isfinite(distance).all()
    found = flat(tree.weighted_sum(weight, as_tree(G)))
    np.testing.assert_allclose(found, exact_median(np.float64(present), NU), atol=1e-5)
