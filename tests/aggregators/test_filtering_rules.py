"""What rules that filter or clip promise by their definitions, and under planted attacks."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_filters
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from sklearn.cluster import HDBSCAN

from fedjax_drag import aggregators as a
from fedjax_drag.aggregators._dnc import draw_coordinates
from fedjax_drag.aggregators._signguard import largest_cluster
from fedjax_drag.ops.linkage import majority_group, two_groups
from fedjax_drag.ops.principal import principal

COHORT, SIZE = 9, 6
ALL = np.ones(COHORT, bool)


def draw(seed=0):
    return np.random.default_rng(seed).normal(size=(COHORT, SIZE)).astype(np.float32)


def as_tree(G):
    return {"a": G[..., :4], "b": G[..., 4:]}


RULES = {
    "fedavg": a.fedavg(),
    "krum": a.krum(2),
    "norm_clipping": a.norm_clipping(1.5),
    "mda": a.mda(2),
    "mda-0": a.mda(0),
    "meamed": a.meamed(2),
    "meamed-0": a.meamed(0),
    "monna": a.monna(2),
    "monna-0": a.monna(0),
    "monna-trusted": a.monna(2, trusted=4),
    "smea": a.smea(2),
    "smea-0": a.smea(0),
    "caf": a.caf(2),
    "caf-0": a.caf(0),
    "dnc": a.dnc(2),
    "dnc-0": a.dnc(0),
    "dnc-drawn": a.dnc(2, iterations=3, num_coordinates=4),
    "signguard": a.signguard(sign_fraction=1.0),
    "clipped_clustering": a.clipped_clustering(2 * COHORT),
    "flame": a.flame(0.1),
    "flame-silent": a.flame(0.0),
    "flame-models": a.flame(0.0, directions="models"),
    "clipping-fedavg": a.clipping(a.fedavg(), 1.5),
    "clipping-krum": a.clipping(a.krum(2), 1e6),
    "arc-fedavg": a.arc(a.fedavg(), 2),
    "arc-fedavg-0": a.arc(a.fedavg(), 0),
    "arc-krum-0": a.arc(a.krum(2), 0),
}


@functools.cache
def compiled(name):
    """A round: ``(G, state, valid, key, root) -> (update, state)``."""
    rule = RULES[name]

    @jax.jit
    def apply(G, state, valid, key, root):
        zero = as_tree(jnp.zeros(SIZE))
        moved, after = rule.apply(zero, as_tree(G), state, valid=valid, key=key, root_delta=as_tree(root))
        return jnp.concatenate([moved["a"], moved["b"]]), after

    return apply


def play(name, G, state=None, valid=ALL, seed=0, root=None):
    state = RULES[name].init(as_tree(jnp.zeros(SIZE))) if state is None else state
    root = np.ones(SIZE, np.float32) if root is None else root
    update, state = compiled(name)(G, state, valid, jax.random.key(seed), root)
    return np.asarray(update), state


def run(name, G, **told):
    update, state = play(name, G, **told)
    return update, {key: np.asarray(value) for key, value in state.metrics.items()}


def planted(seed, attackers=2):
    """Honest clients near the vector of ones, and attackers of the same length near another direction."""
    rng = np.random.default_rng(seed)
    G = 1 + 0.2 * rng.normal(size=(COHORT, SIZE))
    G[:attackers] = [1, 1, -1, -1, 1, -1] + 0.05 * rng.normal(size=(attackers, SIZE))
    order = rng.permutation(COHORT)
    return G[order].astype(np.float32), order < attackers


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["mda", "monna", "smea", "dnc", "dnc-drawn", "signguard", "clipped_clustering", "flame-silent"]
)
def test_planted_attackers_are_left_out(name):
    """They lie in one direction, as does the top singular vector then; of ordinary length, so that no norm tells."""
    for seed in range(5):
        G, malicious = planted(seed)
        update, metrics = run(name, G)
        assert not metrics["weight"][malicious].any()
        honest = G[~malicious]
        assert np.linalg.norm(update - honest.mean(0)) <= np.linalg.norm(honest - honest.mean(0), axis=1).max()
        if name in ("mda", "monna", "smea", "dnc"):
            np.testing.assert_array_equal(metrics["selected"], ~malicious)
            np.testing.assert_allclose(update, honest.mean(0), rtol=1e-5)


@pytest.mark.thorough
def test_planted_attackers_lose_their_weight():
    for seed in range(5):
        G, malicious = planted(seed)
        update, metrics = run("caf", G)
        assert metrics["weight"][malicious].sum() < 0.02
        np.testing.assert_allclose(metrics["weight"] @ G, update, rtol=1e-5)
        np.testing.assert_allclose(metrics["weight"], metrics["trust"] / metrics["trust"].sum(), rtol=1e-5)
        update, metrics = run("meamed", G)
        honest = G[~malicious]
        assert (update >= honest.min(0) - 1e-6).all()
        assert (update <= honest.max(0) + 1e-6).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mda-0", "meamed-0", "monna-0", "smea-0", "caf-0", "dnc-0", "arc-fedavg-0"])
def test_without_malicious_clients_the_mean(name):
    update, metrics = run(name, draw())
    np.testing.assert_allclose(update, draw().mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["weight"], 1 / COHORT, rtol=1e-5)


@pytest.mark.thorough
def test_two_clients_left_of_a_cohort_are_averaged():
    """Equally far from their mean, they would lose all their weight in one turn."""
    G = draw()
    update, metrics = run("caf", G, valid=np.isin(np.arange(COHORT), [2, 5]))
    np.testing.assert_allclose(update, G[[2, 5]].mean(0), rtol=1e-5)
    np.testing.assert_allclose(metrics["weight"][[2, 5]], 0.5, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mda", "smea", "dnc", "caf"])
def test_translation_rotation_and_scale_change_no_choice(name):
    """And the update moves with the clients."""
    for seed in range(5):
        G, rng = draw(seed), np.random.default_rng(seed)
        update, metrics = run(name, G)
        turn = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0].astype(np.float32)
        shift = 100 * rng.normal(size=SIZE).astype(np.float32)
        for change in (lambda x, s=shift: x + s, lambda x, t=turn: x @ t, lambda x: 1e12 * x):
            after, later = run(name, change(G))
            np.testing.assert_allclose(later["weight"], metrics["weight"], atol=1e-3 if name == "caf" else 1e-6)
            np.testing.assert_allclose(after, change(update), atol=1e-3 * np.abs(change(G)).max())


@pytest.mark.thorough
def test_clipping_around_the_mean_is_norm_clipping():
    clipped, metrics = run("clipping-fedavg", draw())
    expected, plain = run("norm_clipping", draw())
    np.testing.assert_allclose(clipped, expected, rtol=1e-6, atol=1e-7)
    for name in ("weight", "scale", "cosine"):
        np.testing.assert_allclose(metrics[name], plain[name], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["clipping-krum", "arc-krum-0"])
def test_nothing_to_clip_changes_no_bit(name):
    update, metrics = run(name, draw())
    expected, plain = run("krum", draw())
    np.testing.assert_array_equal(update, expected)
    np.testing.assert_array_equal(metrics["weight"], plain["weight"])
    np.testing.assert_array_equal(metrics["scale"], 1)


@pytest.mark.thorough
def test_adaptive_clipping_shortens_the_longest():
    """Three of nine, floor(2 x 2 x 7 / 9), to the length of the fourth; of six valid clients two."""
    for valid, number in ((ALL, 3), (np.arange(COHORT) < 6, 2)):
        for seed in range(5):
            _, metrics = run("arc-fedavg", draw(seed), valid=valid)
            lengths = np.where(valid, np.linalg.norm(draw(seed), axis=1), 0.0)
            longest = lengths.argsort()[::-1]
            clipped = np.flatnonzero(valid & (metrics["scale"] < 1))
            np.testing.assert_array_equal(clipped, np.sort(longest[:number]))
            expected = lengths[longest[number]] / lengths[clipped]
            np.testing.assert_allclose(metrics["scale"][clipped], expected, rtol=1e-5)


@pytest.mark.thorough
def test_a_trusted_client_chooses_its_neighbours():
    for seed in range(5):
        G = draw(seed)
        _, metrics = run("monna-trusted", G)
        near = np.linalg.norm(G - G[4], axis=1).argsort()[: COHORT - 2]
        np.testing.assert_array_equal(np.flatnonzero(metrics["selected"]), np.sort(near))
    G[4] = np.nan
    update, metrics = run("monna-trusted", G)
    assert not update.any()
    assert not metrics["weight"].any()


@pytest.mark.thorough
def test_noise_is_as_strong_as_the_median_length_says():
    G = draw()
    silent, _ = run("flame-silent", G)
    noise = np.stack([run("flame", G, seed=seed)[0] - silent for seed in range(200)])
    sigma = 0.1 * np.median(np.linalg.norm(G, axis=1))
    assert abs(noise.std() / sigma - 1) < 0.1
    assert abs(noise.mean()) < 0.1 * sigma
    np.testing.assert_array_equal(run("flame", G, seed=3)[0] - silent, noise[3])


@pytest.mark.thorough
def test_mean_shift_is_that_of_scikit_learn_on_shares_of_few_signs():
    """Of few coordinates many shares are equal, and many as far apart as the bandwidth is wide."""
    largest = jax.jit(largest_cluster)
    for seed in (1007, 1071, 1294, 1449, *range(2000, 2060)):
        rng = np.random.default_rng(seed)
        clients, signs, kinds = int(rng.integers(5, 25)), int(rng.choice([5, 10, 30, 100])), rng.integers(1, 4)
        base = rng.dirichlet(np.ones(3), kinds)
        shares = np.stack([rng.multinomial(signs, base[rng.integers(0, kinds)]) for _ in range(clients)])
        shares = shares.astype(np.float32) / np.float32(signs)
        found = largest(jnp.asarray(shares), jnp.ones(clients, bool))
        np.testing.assert_array_equal(found, numpy_filters.largest_cluster(shares.astype(np.float64)), str(seed))


@pytest.mark.parametrize("name", ["signguard", "clipped_clustering", "flame-silent", "flame-models"])
def test_no_step_is_longer_than_the_median(name):
    for seed in range(5):
        G = draw(seed) * np.logspace(-2, 6, COHORT, dtype=np.float32)[:, None]
        update, metrics = run(name, G)
        assert np.linalg.norm(update) <= np.median(np.linalg.norm(G, axis=1)) * (1 + 1e-5)
        np.testing.assert_allclose(metrics["weight"] @ G, update, rtol=1e-4, atol=1e-5 * np.abs(update).max())


@pytest.mark.thorough
def test_lengths_are_remembered_up_to_the_history():
    """Eighteen lengths, so those of this round and the one before."""
    state, lengths = None, []
    for t in range(4):
        G = (t + 1) * draw(t)
        _, state = play("clipped_clustering", G, state)
        lengths = [*lengths, *np.linalg.norm(G, axis=1)][-2 * COHORT :]
        expected = np.minimum(1, np.median(lengths) / np.linalg.norm(G, axis=1))
        np.testing.assert_allclose(state.metrics["scale"], expected, rtol=1e-5)
    np.testing.assert_allclose(np.sort(state.norms), np.sort(lengths), rtol=1e-6)
    assert int(state.received) == 4 * COHORT


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["clipped_clustering", "flame-silent"])
def test_equal_clients_are_in_one_group(name):
    """Their distances to others are averaged again and again, and must not shrink by rounding."""
    for seed in range(20):
        G, order = draw(seed), np.random.default_rng(seed).permutation(COHORT)
        G[order[:6]] = G[order[0]]
        G[order[6:8]] = G[order[6]]
        _, metrics = run(name, G)
        np.testing.assert_array_equal(metrics["selected"][order[:6]], 1)
        assert len(set(metrics["selected"][order[6:8]])) == 1


@pytest.mark.thorough
def test_linkages_are_those_of_scipy_and_scikit_learn():
    halve = jax.jit(functools.partial(two_groups, linkage="average"))
    join = jax.jit(majority_group)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(12, 3)) + 2 * rng.integers(0, 2, (12, 1))
        valid = np.arange(12) < 7 + seed % 6
        apart = np.linalg.norm(points[:, None] - points, axis=-1)
        given = np.where(valid[:, None] & valid, apart, np.nan).astype(np.float32)
        n = valid.sum()
        labels = cut_tree(linkage(squareform(apart[:n, :n], checks=False), "average"), 2)[:, 0]
        found = np.asarray(halve(np.nan_to_num(given), valid))
        assert not found[:, ~valid].any()
        assert set(map(tuple, found[:, :n])) == {tuple(labels == 0), tuple(labels == 1)}
        settings = {"min_cluster_size": int(n) // 2 + 1, "min_samples": 1, "allow_single_cluster": True, "copy": True}
        cluster = HDBSCAN(metric="precomputed", **settings).fit(apart[:n, :n]).labels_ == 0
        found = np.asarray(join(np.nan_to_num(given), valid))
        np.testing.assert_array_equal(found, np.append(cluster, np.zeros(12 - n, bool)), str(seed))


@pytest.mark.thorough
def test_the_principal_direction_is_that_of_the_covariance():
    found_of = jax.jit(principal)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        G, weight = 50 + draw(seed).astype(np.float64), rng.uniform(size=COHORT) * (np.arange(COHORT) > 1)
        apart = np.linalg.norm(G[:, None] - G, axis=-1)
        found = found_of(apart.astype(np.float32), weight.astype(np.float32))
        offsets = G - weight @ G / weight.sum()
        values, vectors = np.linalg.eigh((weight[:, None] * offsets).T @ offsets / weight.sum())
        np.testing.assert_allclose(found.deviation, np.sqrt(values[-1]), rtol=1e-4)
        along = np.abs(offsets @ vectors[:, -1]) * (weight > 0)
        np.testing.assert_allclose(np.abs(found.along), along, atol=2e-3)


def test_drawn_coordinates_are_distinct_and_from_everywhere():
    """Each array gives in proportion to its size, or all it has."""
    deltas = {"a": np.arange(700.0)[None], "b": np.arange(700.0, 1000.0)[None], "c": np.array([1000.0])[None]}
    for number, quota in ((100, (69, 31)), (10, (6, 4)), (1001, (700, 301)), (5000, (700, 301))):
        drawn = [np.asarray(draw_coordinates(jax.random.key(seed), deltas, number))[0] for seed in range(2)]
        for places in drawn:
            assert len(places) == min(number, 1001) == len(set(places)) == sum(quota)
            assert abs((places < 700).sum() - quota[0]) <= 1
        assert (number >= 1001) == np.array_equal(*drawn)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: a.mda(-1), "num_byzantine=-1"),
        (lambda: a.monna(1, trusted=-1), "trusted=-1"),
        (lambda: a.dnc(1, filter_fraction=-0.5), "filter_fraction=-0.5"),
        (lambda: a.dnc(1, iterations=0), "iterations=0"),
        (lambda: a.dnc(1, num_coordinates=0), "num_coordinates=0"),
        (lambda: a.signguard(lower=-1.0), "lower=-1.0"),
        (lambda: a.signguard(lower=1.5), r"lower=1.5: must be in \[0, 1\]"),
        (lambda: a.signguard(upper=0.5), "upper=0.5"),
        (lambda: a.signguard(sign_fraction=0.0), "sign_fraction=0.0"),
        (lambda: a.clipped_clustering(0), "history=0"),
        (lambda: a.flame(-1e-3), "noise_factor=-0.001"),
        (lambda: a.flame(directions="model"), "directions='model'.*did you mean 'models'"),
        (lambda: a.clipping(a.fedavg(), 0.0), "max_norm=0.0"),
        (lambda: a.arc(a.fedavg(), 0.5), "num_byzantine=0.5"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, name):
    with pytest.raises(ValueError, match=name) as error:
        build()
    assert "\n" not in str(error.value)


def refused(rule, cohort, name):
    zero, deltas = as_tree(jnp.zeros(SIZE)), as_tree(np.zeros((cohort, SIZE), np.float32))
    told = {"key": jax.random.key(0), "root_delta": zero}
    with pytest.raises(ValueError, match=name) as error:
        jax.eval_shape(functools.partial(rule.apply, **told), zero, deltas, rule.init(zero))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (a.mda(5), r"num_byzantine=5: must be at most 4 for a cohort of 9 \(mda needs S > 2 f\)"),
        (a.meamed(5), "num_byzantine=5.*meamed.*; where .* sets it, lower byzantine_fraction or raise cohort_size"),
        (a.smea(5), "num_byzantine=5.*smea"),
        (a.caf(5), "num_byzantine=5.*caf"),
        (a.dnc(5), "num_byzantine=5.*dnc"),
        (a.monna(5), "num_byzantine=5.*monna"),
        (a.monna(1, trusted=9), "trusted=9: must be at most 8"),
        (a.arc(a.fedavg(), 9), "num_byzantine=9: must be at most S - 1 = 8"),
        (a.clipped_clustering(8), "history=8: must be at least 9"),
    ],
)
def test_too_small_a_cohort_is_refused(rule, name):
    refused(rule, COHORT, name)


def test_too_many_subsets_are_refused():
    number = math.comb(40, 8)
    refused(a.mda(8), 40, f"num_byzantine=8: leaves {number} subsets of a cohort of 40 to try; .*at most 200000")
    refused(a.smea(6), 20, f"leaves {math.comb(20, 6)} subsets.*at most 20000 .* lower byzantine_fraction or")
