"""DeepSight, FLARE, RFLBAT and HDBSCAN against twins in float64 and scikit-learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_inspection
from sklearn.cluster import HDBSCAN

from fedjax_drag import aggregators
from fedjax_drag.aggregators import _flare
from fedjax_drag.aggregators._rfl_bat import reference_points
from fedjax_drag.ops.linkage import hdbscan
from fedjax_drag.types import Batch, Prediction
from fedjax_drag.types._part import Function

COHORT, FEATURES, UNITS, CLASSES, ROOT = 14, 5, 6, 4, 9


@functools.partial(jax.jit, static_argnames=("min_cluster_size", "min_samples"))
def labels_of(apart, valid, min_cluster_size, min_samples):
    return hdbscan(apart, valid, min_cluster_size, min_samples)


def same(a, b):
    """Whether two labellings are the same clusters."""
    return np.array_equal(numpy_inspection.together(a), numpy_inspection.together(b))


def apart_of(rows):
    return np.linalg.norm(rows[:, None] - rows, axis=-1).astype(np.float32)


def scattered(seed, n=COHORT):
    """Points around a few centres, more or less apart."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.5, 6) * rng.normal(size=(rng.integers(1, 5), 2))
    return centres[rng.integers(0, len(centres), n)] + rng.normal(size=(n, 2)) * rng.uniform(0.2, 1.5, (n, 1))


def test_hdbscan_is_that_of_scikit_learn_where_nothing_is_equally_far():
    """With one neighbour the distances themselves connect, and no two of them are equal."""
    found = 0
    for seed in range(150):
        apart = apart_of(scattered(seed))
        expected = HDBSCAN(metric="precomputed", min_cluster_size=3, min_samples=2, copy=True).fit(apart).labels_
        labels = np.asarray(labels_of(apart, np.ones(COHORT, bool), 3, 1))
        assert same(labels, expected), seed
        found += len(set(labels) - {-1})
    assert found > 150


def test_hdbscan_of_several_neighbours_is_the_papers():
    """scikit-learn gives points between two clusters to one of them; it agrees on the others in most cohorts."""
    agree = 0
    for seed in range(60):
        apart = apart_of(scattered(seed))
        labels = np.asarray(labels_of(apart, np.ones(COHORT, bool), 3, 3))
        assert same(labels, numpy_inspection.hdbscan(np.float64(apart), 3, 3)), seed
        theirs = HDBSCAN(metric="precomputed", min_cluster_size=3, min_samples=4, copy=True).fit(apart).labels_
        agree += same(labels, np.where(labels < 0, -1, theirs))
    assert agree >= 50


def test_hdbscan_of_equal_distances_and_of_absent_points():
    """Distances in thirds, many of them 0, and some infinite: whatever the order of the points."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, COHORT + 1))
        kind = rng.integers(0, 4, (3, COHORT))
        apart = np.mean([k[:, None] != k for k in kind], axis=0).astype(np.float32)
        apart = np.round(apart * 3) / 3
        if seed % 3 == 0:
            lost = rng.random(COHORT) < 0.2
            apart[lost | lost[:, None]] = np.inf
        order = rng.permutation(COHORT)
        valid = np.zeros(COHORT, bool)
        valid[order[:n]] = True
        labels = np.asarray(labels_of(apart, valid, 3, 2))
        assert (labels[~valid] == -1).all()
        expected = numpy_inspection.hdbscan(np.float64(apart[np.ix_(valid, valid)]), 3, 2)
        assert same(labels[valid], expected), seed


def predict(w, x):
    hidden = jnp.tanh(x @ w["hidden"]["kernel"] + w["hidden"]["bias"])
    return Prediction(hidden @ w["out"]["kernel"] + w["out"]["bias"], hidden)


def model(rng, scale, *lead):
    shapes = {"kernel": (FEATURES, UNITS), "bias": (UNITS,)}, {"kernel": (UNITS, CLASSES), "bias": (CLASSES,)}
    draw = lambda shape: np.float32(scale * rng.normal(size=(*lead, *shape)))
    return dict(zip(("hidden", "out"), [{k: draw(s) for k, s in layer.items()} for layer in shapes], strict=True))


def poisoned(seed):
    """Parameters, deltas of which some few attackers train one class alone, and who they are."""
    rng = np.random.default_rng(seed)
    w, deltas = model(rng, 0.5), model(rng, 0.02, COHORT)
    malicious = np.arange(COHORT) < 5
    common = model(rng, 0.1)
    deltas = jax.tree.map(lambda g, c: g + c, deltas, common)
    one = np.arange(CLASSES) == 1
    for leaf in deltas["out"].values():
        leaf[malicious] = np.where(one, 0.3 + leaf[malicious], 0.02 * leaf[malicious])
    order = rng.permutation(COHORT)
    return w, jax.tree.map(lambda g: g[order], deltas), malicious[order]


def in_float64(tree, row=None):
    return jax.tree.map(lambda x: np.float64(x if row is None else x[row]), tree)


DEEPSIGHT = aggregators.deepsight("out", num_seeds=2, num_samples=40, min_cluster_size=3, min_samples=2)
EVERYBODY = np.ones(COHORT, bool)
FLARE = aggregators.flare(temperature=0.5)


@functools.cache
def round_of(rule):
    told = {"predict": Function(predict), "example": jnp.zeros(FEATURES)}

    @jax.jit
    def apply(w, deltas, valid, key, root):
        return rule.apply(w, deltas, rule.init(w), valid=valid, key=key, root_data=root, **told)

    return apply


def play(rule, w, deltas, valid=EVERYBODY, seed=0, root=None):
    root = Batch(np.zeros((ROOT, FEATURES), np.float32), np.zeros(ROOT, np.int32)) if root is None else root
    moved, state = round_of(rule)(w, deltas, valid, jax.random.key(seed), root)
    update = jax.tree.map(lambda after, before: after - before, moved, w)
    return update, {name: np.asarray(value) for name, value in state.metrics.items()}


def random_inputs(seed):
    """What the rule draws: one batch a set."""
    for (batch,) in jax.random.split(jax.random.key(seed), (DEEPSIGHT.num_seeds, 1)):
        yield np.float64(jax.random.uniform(batch, (DEEPSIGHT.num_samples, FEATURES)))


def assert_update(update, deltas, weight):
    expected = jax.tree.map(lambda g: np.tensordot(np.float64(weight), np.float64(g), 1), deltas)
    jax.tree.map(lambda u, e: np.testing.assert_allclose(u, e, rtol=1e-4, atol=1e-6), update, expected)


@pytest.mark.thorough
def test_deepsight_is_its_twin():
    """Cohorts with attackers and without, of which clients are absent."""
    accepted, refused = 0, 0
    for seed in range(12):
        rng = np.random.default_rng([1, seed])
        w, deltas, _ = poisoned(seed) if seed % 3 else (model(rng, 0.5), model(rng, 0.1, COHORT), None)
        valid = rng.random(COHORT) < (1.0 if seed % 2 else 0.8)
        update, metrics = play(DEEPSIGHT, w, deltas, valid, seed)
        rows = [in_float64(deltas, row) for row in np.flatnonzero(valid)]
        models = [jax.tree.map(np.add, in_float64(w), row) for row in rows]
        inputs = list(random_inputs(seed))
        chosen, exceeding = numpy_inspection.deepsight(in_float64(w), models, rows, inputs, 1 / 3, 3, 2)
        np.testing.assert_array_equal(metrics["score"][valid], exceeding)
        np.testing.assert_array_equal(metrics["selected"][valid], chosen)
        lengths = np.array([np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(row))) for row in rows])
        weight = np.zeros(COHORT)
        weight[valid] = chosen * np.minimum(1, np.median(lengths) / lengths) / max(chosen.sum(), 1)
        np.testing.assert_allclose(metrics["weight"], weight, rtol=1e-4, atol=1e-7)
        assert_update(update, deltas, weight)
        accepted, refused = accepted + chosen.sum(), refused + (~chosen).sum()
    assert min(accepted, refused) > 20


@pytest.mark.thorough
def test_deepsight_leaves_out_clients_that_train_one_class():
    for seed in range(3):
        w, deltas, malicious = poisoned(seed)
        _, metrics = play(DEEPSIGHT, w, deltas, seed=seed)
        assert not metrics["selected"][malicious].any()
        assert metrics["selected"][~malicious].mean() > 0.8


@pytest.mark.thorough
def test_flare_is_its_twin():
    for seed in range(6):
        rng = np.random.default_rng([2, seed])
        w, deltas = model(rng, 0.5), model(rng, 0.3, COHORT)
        x, real = rng.normal(size=(ROOT, FEATURES)).astype(np.float32), np.arange(ROOT) < ROOT - seed % 3
        valid = rng.random(COHORT) < (1.0 if seed % 2 else 0.8)
        update, metrics = play(FLARE, w, deltas, valid, root=Batch(x, np.zeros(ROOT, np.int32), real))
        models = [jax.tree.map(np.add, in_float64(w), in_float64(deltas, row)) for row in np.flatnonzero(valid)]
        found = [numpy_inspection.hidden(own, np.float64(x[real])) for own in models]
        apart = numpy_inspection.pairwise(lambda a, b: numpy_inspection.discrepancy(a, b, 1 / UNITS), found)
        count, share = numpy_inspection.flare(apart, 0.5)
        np.testing.assert_array_equal(metrics["score"][valid], count)
        weight = np.zeros(COHORT)
        weight[valid] = share
        np.testing.assert_allclose(metrics["weight"], weight, rtol=1e-5)
        assert_update(update, deltas, weight)


def test_flare_keeps_the_digits_of_models_that_are_close():
    """Of estimates near 1e-8, where 1 - k is what float32 holds."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(ROOT, UNITS))
    found = np.float32(common + 1e-2 * rng.normal(size=(4, ROOT, UNITS)))
    ours = np.asarray(_flare.discrepancies(found, np.ones(ROOT, bool)))
    theirs = [[numpy_inspection.discrepancy(np.float64(a), np.float64(b), 1 / UNITS) for b in found] for a in found]
    off = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(ours[off], np.array(theirs)[off], rtol=2e-3)


def crowds(seed):
    """Deltas of honest clients that differ, and of attackers that resemble each other, apart from them."""
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(COHORT, 12))
    G[:4] = 4 + 0.3 * rng.normal(size=(4, 12))
    order = rng.permutation(COHORT)
    return G[order].astype(np.float32), order < 4


RFL_BAT = aggregators.rfl_bat(max_clusters=4)


@functools.cache
def filtered():
    zero = {"w": jnp.zeros(12)}
    return jax.jit(lambda G, valid, key: RFL_BAT.apply(zero, {"w": G}, RFL_BAT.init(zero), valid=valid, key=key))


@pytest.mark.thorough
def test_rfl_bat_is_its_twin():
    sizes = set()
    for seed in range(5):
        G, malicious = crowds(seed)
        if seed % 3 == 0:
            G = np.random.default_rng(seed).normal(size=G.shape).astype(np.float32)
        key = jax.random.key(seed)
        moved, state = filtered()(G, np.ones(COHORT, bool), key)
        drawn = np.float64(reference_points(jax.random.split(key)[0], COHORT))
        members = numpy_inspection.rfl_bat(np.float64(G), lambda n, drawn=drawn: drawn[:, :n], 10.0, 4.0, 4)
        np.testing.assert_array_equal(np.flatnonzero(state.metrics["selected"]), np.sort(members))
        np.testing.assert_allclose(moved["w"], G[members].mean(0), rtol=1e-4, atol=1e-5)
        sizes.add(len(members))
        if seed % 3:
            assert not state.metrics["selected"][malicious].any()
    assert len(sizes) > 1
