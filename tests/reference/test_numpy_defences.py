"""Rules against backdoors and forged messages against twins written from their papers in float64."""

import functools

import jax
import numpy as np
import pytest
from reference import numpy_defences, numpy_robust, twins
from reference.twins import Pair

from fedjax_drag import aggregators
from fedjax_drag.ops.kmeans import upper_cluster
from fedjax_drag.ops.lbfgs import change_along

LAYERS = [slice(0, 8), slice(8, 12)]
"""Of :func:`reference.twins.as_tree`; the first is a matrix."""


def lasa(sparsity, bounds):
    settings = {"sparsity": sparsity, "lambda_norm": bounds[0], "lambda_sign": bounds[1]}
    return Pair("lasa", settings, lambda G, s, t, e: numpy_defences.lasa(G, LAYERS, [0], sparsity, bounds))


def foundationfl(rule, number):
    def twin(G, state, t, e):
        del state, t, e
        copies = len(G) // 2 if number is None else number
        rows = numpy_defences.with_copies(G, copies)
        cut = (len(rows) - 1) // 2 if rule.name == "median" else int(0.3 * len(rows) + 1e-9)
        ordered = np.sort(rows, axis=0)
        return numpy_robust.outcome(G, ordered[cut : len(rows) - cut].mean(axis=0))

    return Pair("foundationfl", {"aggregator": rule, "num_synthetic": number}, twin)


def fldetector(window):
    def twin(G, detector, t, e):
        del t
        if detector is None:
            detector = numpy_defences.Detector(window, list(range(twins.FEDERATION)))
        ids = e["client_ids"].astype(int).tolist()
        detector.measure(ids, G)
        own = jax.random.split(e["key"])[0]
        detector.remove(np.asarray(jax.random.uniform(own, (10, twins.FEDERATION)), np.float64))
        left = np.array([client not in detector.removed for client in ids])
        update = G[left].mean(axis=0) if left.any() else np.zeros(G.shape[1])
        detector.updates.append(update)
        detector.last |= dict(zip(ids, G, strict=True))
        return numpy_robust.outcome(G, update, left / max(left.sum(), 1))._replace(state=detector)

    bounds = {"window": window, "max_removals": None, "num_clients": twins.FEDERATION}
    settings = {"aggregator": aggregators.fedavg(), **bounds}
    return Pair("fldetector", settings, twin)


PAIRS = {
    "robust_lr": Pair("robust_lr", {"threshold": 4.0}, lambda G, s, t, e: numpy_defences.robust_lr(G, 4.0)),
    "crfl": Pair("crfl", {"clip": 0.8, "sigma": 0.0}, lambda G, s, t, e: numpy_defences.crfl(G, 0.8)),
    "lasa": lasa(0.3, (1.0, 1.0)),
    "lasa-wide": lasa(0.75, (2.0, 1.5)),
    "foundationfl-median": foundationfl(aggregators.median(), None),
    "foundationfl-trimmed_mean": foundationfl(aggregators.trimmed_mean(0.3), 3),
}

INPUTS = {
    "robust_lr": [twins.random, twins.six_orders, twins.offset, twins.opposed],
    "crfl": twins.INPUTS,
    "lasa": [twins.random, twins.six_orders, twins.offset],
    "lasa-wide": [twins.random, twins.six_orders],
    "foundationfl-median": [twins.random, twins.six_orders, twins.offset],
    "foundationfl-trimmed_mean": [twins.random, twins.six_orders, twins.offset],
}
"""Those on which no choice is between equals."""


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "S"), [twins.seldom(name, S, unless=S == 10) for name in PAIRS for S in (10, 41)])
def test_agrees_with_its_twin(name, S):
    """Three rounds of each kind of input, with everybody there and with some missing."""
    twins.duel(PAIRS[name], S, 0, INPUTS[name])
    twins.duel(PAIRS[name], S, {10: 3, 41: 12}[S], [kind for kind in INPUTS[name] if kind is not twins.opposed])


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1e30, twins.seldom(1e-30, unless=False)])
@pytest.mark.parametrize("name", ["robust_lr", "lasa", "foundationfl-median"])
def test_extreme_norms(name, scale):
    twins.verify_extreme(PAIRS[name], scale)


@pytest.mark.sample(1)
@pytest.mark.parametrize("window", [1, 2])
def test_the_detector_agrees_with_its_twin(window):
    """Some clients are unlike themselves from round to round, so that it finds and removes them; others are absent."""
    rng, pair = np.random.default_rng(window), fldetector(window)
    centres = rng.normal(size=(twins.FEDERATION, twins.SIZE))

    def cohort(t):
        # Which client sits where is drawn by `extras`, so deltas are of places, and only their spread is planted.
        spread = np.where(np.arange(20) < 4, 3.0, 0.1)[:, None]
        return centres[:20] * 0.9**t + spread * rng.normal(size=(20, twins.SIZE))

    cohorts = [cohort(t) for t in range(14)]
    valid = [rng.uniform(size=20) < 0.9 for _ in cohorts]
    removed = 0
    for played in twins.play(pair, cohorts, rng, valid):
        twins.assert_agrees(played)
        assert played.outcome
        removed = max(removed, len(played.outcome.state.removed))
        np.testing.assert_array_equal(np.flatnonzero(played.state.removed), sorted(played.outcome.state.removed))
    assert 0 < removed < twins.FEDERATION


@pytest.mark.parametrize("seed", range(4))
def test_the_change_along_the_last_update_is_that_of_bfgs_by_its_recursion(seed):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(4, twins.SIZE))
    pairs = [(updates[j], updates[j + 1] - updates[j]) for j in range(3)]
    expected = numpy_defences.bfgs(pairs) @ updates[-1]
    change = twins.as_vector(jax.jit(change_along)(twins.as_tree(updates)))
    twins.assert_close(change, expected, 1e-3)


@functools.cache
def compiled():
    return jax.jit(upper_cluster)


@pytest.mark.parametrize("seed", range(8))
def test_the_upper_cluster_is_that_of_the_gap_statistic_with_all_divisions_tried(seed):
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    numbers = rng.normal(size=30) * 0.2 + np.where(rng.uniform(size=30) < 0.3, seed / 2, 0.0)
    counted = rng.uniform(size=30) < 0.8
    uniform = np.asarray(jax.random.uniform(key, (10, 30)), np.float64)[:, : counted.sum()]
    found = np.asarray(compiled()(numbers.astype(np.float32), counted, key))
    assert not found[~counted].any()
    np.testing.assert_array_equal(found[counted], numpy_defences.upper_cluster(numbers[counted], uniform))
