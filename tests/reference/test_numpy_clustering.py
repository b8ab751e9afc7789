"""Rules that compare clients with one another against SciPy, scikit-learn and NumPy float64."""

import functools

import jax
import numpy as np
import pytest
from reference import numpy_clustering, numpy_rules, twins
from reference.twins import Pair, assert_close

from fedjax_drag.ops import kmeans
from fedjax_drag.simulation.program import dissimilarity


def check_clustering(played):
    """The larger of SciPy's two clusters."""
    assert numpy_clustering.is_clear(played.G), "clusters hang on rounding: choose another seed"
    expected = numpy_clustering.clustering(played.G, numpy_clustering.two_clusters(played.G))
    twins.assert_agrees(played, expected)


def check_clusterguard(played, num_clusters=2, use_num_examples=False, standardise=False):
    """Clusters as good as scikit-learn's, and the weights that follow from them."""
    names = ("dissimilarity", "num_examples") if use_num_examples else ("dissimilarity",)
    features = [played.extra[name] for name in names]
    X = numpy_clustering.standardised(*features) if standardise else np.stack(features, axis=1).astype(np.float64)
    labels = played.metrics["cluster"][played.seen]
    assert (played.metrics["cluster"][~played.seen] == -1).all()
    check_clusters(X, labels, num_clusters)
    expected = numpy_clustering.clusterguard(played.G, X, labels)
    twins.assert_agrees(played, expected)


LOCAL = 0.1
"""Points without structure have many stable clusterings, of which the best of ten starts may be this much worse."""


def check_clusters(X, labels, num_clusters):
    """Lloyd's algorithm would change nothing, and scikit-learn finds none that are much better."""
    assert numpy_clustering.is_stable(X, labels), "not stable"
    inertia = numpy_clustering.clusters(X, labels).inertia
    best = numpy_clustering.best_inertia(X, num_clusters)
    assert inertia <= best * (1 + LOCAL) + 1e-9, (inertia, best)


def foolsgold(G, state, t, e):
    """The twin with its memory: a sum of deltas for each client of the federation."""
    del t
    ids = e["client_ids"].astype(int)
    history = np.zeros((twins.FEDERATION, G.shape[1])) if state is None else state.copy()
    history[ids] += G
    return numpy_clustering.foolsgold(G, history[ids])._replace(state=history)


def check_foolsgold(played):
    """To 1e-5, and to what is left of the smallest angle between histories when unit vectors are rounded to float32."""
    outcome, seen = played.outcome, played.seen
    history = outcome.state[played.extra["client_ids"].astype(int)]
    unit = np.stack([numpy_rules.direction(h) for h in history])
    apart = np.linalg.norm(unit[:, None] - unit[None], axis=-1)
    rtol = 1e-5 + 2 * np.finfo(np.float32).eps / apart[apart > 1e-6].min(initial=1.0)
    assert_close(played.update, outcome.update, rtol)
    np.testing.assert_allclose(played.metrics["weight"][seen], outcome.weight, atol=rtol * outcome.weight.max())
    np.testing.assert_allclose(played.metrics["cosine"][seen], outcome.cosine, atol=1e-5)


PAIRS = {
    "clustering": Pair("clustering", check=check_clustering),
    **{
        name: Pair("clusterguard", settings, check=functools.partial(check_clusterguard, **settings))
        for name, settings in {
            "clusterguard": {},
            "clusterguard-3": {"num_clusters": 3},
            "clusterguard-standardised": {"num_clusters": 3, "standardise": True},
            "clusterguard-sizes": {"use_num_examples": True, "standardise": True},
        }.items()
    },
    "foolsgold": Pair("foolsgold", {"num_clients": twins.FEDERATION}, foolsgold, check=check_foolsgold),
    "foolsgold_taco": Pair("foolsgold_taco", {}, lambda G, s, t, e: numpy_clustering.foolsgold_taco(G)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("S", [twins.seldom(S, unless=S == 10) for S in (1, 2, 3, 10, 41)])
@pytest.mark.parametrize("name", PAIRS)
def test_agrees_with_its_twin(name, S):
    """Three rounds of every kind of input, with everybody there and with some missing."""
    twins.duel(PAIRS[name], S)
    if S > 2:
        twins.duel(PAIRS[name], S, missing={3: 1, 10: 3, 41: 12}[S])


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1e30, twins.seldom(1e-30, unless=False)])
@pytest.mark.parametrize("name", PAIRS)
def test_extreme_norms(name, scale):
    twins.verify_extreme(PAIRS[name], scale)


KMEANS = jax.jit(kmeans.kmeans, static_argnames="num_clusters")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Could not find the number of physical cores")  # of joblib, in some containers
@pytest.mark.parametrize("num_clusters", [1, 2, 3, 5])
def test_kmeans_finds_what_scikit_learn_finds(num_clusters):
    """On points without structure, on groups, on ties, and with some points absent."""
    rng = np.random.default_rng(num_clusters)
    groups = 10 * rng.normal(size=(num_clusters, 2))[rng.integers(0, num_clusters, 30)]
    cases = [
        rng.normal(size=(30, 2)),
        groups + rng.normal(size=(30, 2)),
        100 + 1e-2 * rng.normal(size=(30, 2)),
        rng.integers(0, 3, (30, 2)).astype(float),
        np.ones((30, 2)),
    ]
    for number, points in enumerate(cases):
        for absent in (0, 7):
            valid = np.ones(30, bool)
            valid[rng.permutation(30)[:absent]] = False
            given = np.where(valid[:, None], points, np.nan).astype(np.float32)
            found = KMEANS(given, valid, jax.random.key(number), num_clusters=num_clusters)
            labels, X = np.asarray(found.assignment), given[valid].astype(np.float64)
            assert (labels[~valid] == -1).all()
            labels = labels[valid]
            ours = numpy_clustering.clusters(X, labels).inertia
            rounding = 1e-5 * ours + 1e-12 * (X**2).sum()
            assert abs(found.inertia - ours) <= rounding
            assert numpy_clustering.lloyd_inertia(X, labels) >= ours * (1 - 1e-5) - rounding
            better = 1e-5 if points is cases[1] else LOCAL
            assert ours <= numpy_clustering.best_inertia(X, num_clusters) * (1 + better) + rounding, number


def certain(rng, rows, classes):
    """Rows of few distinct probabilities."""
    return rng.permuted(np.tile([0.5, 0.25, 0.25] + [0.0] * (classes - 3), (rows, 1)), axis=1).astype(np.float32)


def predictions(rng, rows, classes, sharpness):
    """Random rows of probabilities, float32."""
    scores = sharpness * rng.normal(size=(rows, classes))
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("kind", ["flattened", "class_histogram"])
def test_earth_movers_distance_is_scipys(kind):
    """Flat and peaked predictions, ties, equal models, and any number of rows before the padding."""
    distance = jax.jit(getattr(dissimilarity, kind))
    twin = getattr(numpy_clustering, f"emd_{kind}")
    rng = np.random.default_rng(0)
    for sharpness in (0.1, 1.0, 5.0, 100.0):
        a, b = predictions(rng, 40, 7, sharpness), predictions(rng, 40, 7, 2 * sharpness)
        for count in (1, 2, 13, 40):
            for left, right in ((a, b), (b, a), (a, a), (certain(rng, 40, 7), certain(rng, 40, 7))):
                expected = twin(left[:count].astype(np.float64), right[:count].astype(np.float64))
                assert abs(float(distance(left, right, count)) - expected) <= 1e-6 * max(1, expected), (kind, count)
