"""Rules that compare clients with each other: their parts against scipy and scikit-learn, and what they do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from fedjax_drag.aggregators._bucketing import bucketing
from fedjax_drag.aggregators._clusterguard import clusterguard
from fedjax_drag.aggregators._clustering import clustering, cosine_distances
from fedjax_drag.aggregators._foolsgold import foolsgold
from fedjax_drag.aggregators._foolsgold_taco import foolsgold_taco
from fedjax_drag.ops.kmeans import kmeans
from fedjax_drag.ops.linkage import two_groups

SIZE = 6
groups_of = jax.jit(two_groups)
clusters_of = jax.jit(kmeans, static_argnums=(3, 4))


@functools.cache
def compiled(builder, **settings):
    """``(deltas [S, SIZE], state, extras) -> (update, state)``; each shape compiles once."""
    rule = builder(**settings)

    @jax.jit
    def apply(G, state, extra):
        params, state = rule.apply({"w": jnp.zeros(SIZE)}, {"w": G}, state, **extra)
        return params["w"], state

    return rule.init({"w": jnp.zeros(SIZE)}), apply


def play(builder, G, extra=None, state=None, **settings):
    """One round: update, metrics and state."""
    start, apply = compiled(builder, **settings)
    update, state = apply(jnp.asarray(G, jnp.float32), start if state is None else state, extra or {})
    return np.asarray(update), jax.tree.map(np.asarray, state.metrics), state


def around(direction, number, noise=0.1, seed=0):
    """Deltas near ``direction``."""
    noise = noise * np.random.default_rng(seed).normal(size=(number, SIZE))
    return (np.asarray(direction, float) + noise).astype(np.float32)


class TestLinkage:
    def test_groups_are_those_of_scipy(self):
        """On random directions, some clients absent."""
        rng, size = np.random.default_rng(0), 14
        for _ in range(60):
            x = rng.normal(size=(size, 4))
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            distances = 1 - x @ x.T
            valid = rng.random(size) < 0.8
            there = distances[np.ix_(valid, valid)]
            condensed = squareform(np.maximum(there, 0) * (1 - np.eye(valid.sum())), checks=False)
            labels = fcluster(linkage(condensed, "complete"), 2, "maxclust")
            found = np.asarray(groups_of(np.where(valid[:, None] & valid, distances, np.nan).astype(np.float32), valid))
            np.testing.assert_array_equal(found[0][valid], labels == labels[0])
            np.testing.assert_array_equal(found[0] ^ found[1], valid)

    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_few_clients(self, number):
        valid = np.isin(np.arange(14), [3, 8][:number])
        found = np.asarray(groups_of(np.ones((14, 14), np.float32), valid))
        np.testing.assert_array_equal(found.sum(1), [number > 0, number > 1])
        np.testing.assert_array_equal(found.any(0), valid)

    def test_equal_distances_still_end(self):
        for distance in (0.0, 1.0):
            found = np.asarray(groups_of(np.full((14, 14), distance, np.float32), np.ones(14, bool)))
            assert found.any(1).all()
            assert (found.sum(0) == 1).all()


class TestClustering:
    @pytest.mark.thorough
    def test_the_smaller_group_does_not_count(self):
        G = np.concatenate([around(np.ones(SIZE), 5), around(-np.ones(SIZE), 3) * 1e6])
        update, metrics, _ = play(clustering, G)
        np.testing.assert_array_equal(metrics["selected"], [1] * 5 + [0] * 3)
        np.testing.assert_allclose(metrics["weight"], metrics["selected"] / 5, rtol=1e-6)
        np.testing.assert_allclose(update, G[:5].mean(0), rtol=1e-5)

    @pytest.mark.thorough
    def test_of_groups_of_one_size_the_tighter_counts(self):
        loose, tight = around(np.ones(SIZE), 4, 0.5), around(-np.ones(SIZE), 4, 0.01)
        for G, expected in ((np.concatenate([loose, tight]), tight), (np.concatenate([tight, loose]), tight)):
            update, _, _ = play(clustering, G)
            np.testing.assert_allclose(update, expected.mean(0), rtol=1e-5)

    @pytest.mark.thorough
    def test_of_two_clients_both_count(self):
        G = around(np.ones(SIZE), 8, 1.0)
        update, metrics, _ = play(clustering, G, {"valid": jnp.arange(8) < 2})
        np.testing.assert_array_equal(metrics["selected"], [1, 1, 0, 0, 0, 0, 0, 0])
        np.testing.assert_allclose(update, G[:2].mean(0), rtol=1e-5)

    @pytest.mark.slow
    def test_cosine_distances_of_all_pairs(self):
        x = np.random.default_rng(0).normal(size=(5, SIZE)).astype(np.float32)
        unit = x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
        expected = 1 - unit @ unit.T
        for scale in (1, 1e30, 1e-30):
            scaled = x * np.float32(scale)
            found = cosine_distances({"a": jnp.asarray(scaled[:, :2]), "b": jnp.asarray(scaled[:, 2:])})
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-12)
        x[1], x[3, 2] = 0, np.nan
        found = np.asarray(cosine_distances({"a": jnp.asarray(x)}))
        assert (found[[1, 3]] == 1 - np.eye(5)[[1, 3]]).all()
        np.testing.assert_allclose(found[0, [2, 4]], expected[0, [2, 4]], rtol=1e-5)

    @pytest.mark.thorough
    def test_nearly_parallel_deltas_keep_their_angles(self):
        rng = np.random.default_rng(1)
        x = (100 * rng.normal(size=SIZE) + 0.1 * rng.normal(size=(6, SIZE))).astype(np.float32)
        unit = x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
        expected = np.square(unit[:, None] - unit[None]).sum(-1) / 2
        found = cosine_distances({"a": jnp.asarray(x)})
        np.testing.assert_allclose(found, expected, rtol=1e-3)  # what rounding unit vectors to float32 leaves


class TestKMeans:
    @pytest.mark.slow
    def test_inertia_is_at_most_that_of_scikit_learn(self):
        """Blobs and shapeless clouds, where one start in ten finds the best; some points absent."""
        rng = np.random.default_rng(0)
        for case, (k, spread) in enumerate([(2, 0.2), (2, 3.0), (3, 0.3), (3, 3.0), (4, 0.5), (4, 3.0)]):
            for _ in range(3):
                centres = rng.normal(size=(k, 2)) * 2
                points = (centres[rng.integers(k, size=40)] + spread * rng.normal(size=(40, 2))).astype(np.float32)
                valid = rng.random(40) < 0.85
                found = clusters_of(points, valid, jax.random.key(case), k, 50)
                with threadpool_limits(1):  # threads that wait for each other slow forty points down twenty times
                    reference = KMeans(k, n_init=50, random_state=0, tol=0).fit(points[valid])
                assert found.inertia <= reference.inertia_ * (1 + 1e-5)
                self.check(found, points, valid, k)

    def check(self, found, points, valid, k):
        """A fixed point of Lloyd's iteration, described consistently."""
        assignment, centroids = np.asarray(found.assignment), np.asarray(found.centroids)
        np.testing.assert_array_equal(assignment < 0, ~valid)
        distances = np.linalg.norm(points[:, None] - centroids, axis=2)
        np.testing.assert_array_equal(assignment[valid], distances[valid].argmin(1))
        for j in range(k):
            np.testing.assert_allclose(centroids[j], points[assignment == j].mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.inertia, np.square(distances[valid].min(1)).sum(), rtol=1e-5)
        assert (np.diff(centroids[:, 0]) >= 0).all()

    @pytest.mark.thorough
    def test_order_and_absent_points_do_not_matter(self):
        rng = np.random.default_rng(1)
        points = rng.normal(size=(40, 2)).astype(np.float32)
        valid = np.arange(40) < 25
        key = jax.random.key(3)
        found = clusters_of(points, valid, key, 3, 1)
        order = rng.permutation(40)
        permuted = clusters_of(points[order], valid[order], key, 3, 1)
        np.testing.assert_array_equal(permuted.assignment, np.asarray(found.assignment)[order])
        junk = np.where(valid[:, None], points, np.nan)
        np.testing.assert_array_equal(clusters_of(junk, valid, key, 3, 1).assignment, found.assignment)
        smaller = clusters_of(points[:25], valid[:25], key, 3, 1)
        np.testing.assert_array_equal(smaller.assignment, found.assignment[:25])

    @pytest.mark.thorough
    def test_more_clusters_than_points(self):
        points = np.zeros((40, 2), np.float32)
        points[:2] = [[1, 0], [-1, 0]]
        found = clusters_of(points, np.arange(40) < 2, jax.random.key(0), 4, 20)
        assert found.inertia == 0
        np.testing.assert_array_equal(found.assignment[:3], [1, 0, -1])
        assert np.isfinite(found.centroids).all()
        found = clusters_of(points, np.zeros(40, bool), jax.random.key(0), 4, 20)
        assert (found.assignment == -1).all()
        assert found.inertia == 0


def guarded(dissimilarity, num_examples, key=0):
    return {
        "dissimilarity": jnp.asarray(dissimilarity, jnp.float32),
        "num_examples": jnp.asarray(num_examples, jnp.int32),
        "key": jax.random.key(key),
    }


STANDARDISED = {"emd": "flattened", "use_num_examples": True, "standardise": True}
"""The text's reading: clusters of dissimilarity and size."""


class TestClusterGuard:
    SIZES = (60, 55, 65, 58, 62, 61, 59, 60, 57, 63)
    MOVED = (0.1, 0.11, 0.12, 0.1, 0.9, 0.11, 0.105, 0.95, 0.1, 0.115)
    ODD = np.isin(np.arange(10), [4, 7])

    @pytest.mark.thorough
    @pytest.mark.parametrize("settings", [{}, STANDARDISED])
    def test_an_outlying_group_loses_its_weight(self, settings):
        G = np.where(self.ODD[:, None], -100.0, around(np.ones(SIZE), 10))
        sizes = np.where(self.ODD, 10, self.SIZES)
        update, metrics, _ = play(clusterguard, G, guarded(self.MOVED, sizes), **settings)
        np.testing.assert_array_equal(metrics["cluster"], self.ODD)
        assert metrics["weight"][self.ODD].sum() < 0.02
        np.testing.assert_allclose(metrics["weight"].sum(), 1, rtol=1e-6)
        np.testing.assert_allclose(update, metrics["weight"] @ G, rtol=1e-4)

    def test_scores_are_those_of_the_paper(self):
        """Of the dissimilarity alone, as it is, in the clusters found; the twin in NumPy has the other settings."""
        _, metrics, _ = play(clusterguard, around(np.ones(SIZE), 10), guarded(self.MOVED, self.SIZES))
        moved, score = np.array(self.MOVED), np.zeros(10)
        for j in (0, 1):
            members = metrics["cluster"] == j
            score[members] = members.sum() / (1 + np.abs(moved[members] - moved[members].mean()))
        np.testing.assert_allclose(metrics["weight"], np.exp(score) / np.exp(score).sum(), rtol=1e-4)

    @pytest.mark.thorough
    def test_raw_dissimilarity_spares_the_ordinary_and_standardised_picks_few(self):
        """In one and the same cluster the highest weight is twice the lowest, or thirty times."""
        moved = (0.1, 0.13, 0.16, 0.19, 0.22, 0.25, 0.28, 0.31)
        _, raw, _ = play(clusterguard, around(np.ones(SIZE), 8), guarded(moved, [50] * 8), num_clusters=1)
        _, scaled, _ = play(
            clusterguard, around(np.ones(SIZE), 8), guarded(moved, [50] * 8), num_clusters=1, standardise=True
        )
        assert raw["weight"].max() < 2.5 * raw["weight"].min()
        assert scaled["weight"].max() > 20 * scaled["weight"].min()

    @pytest.mark.thorough
    def test_without_sizes_they_are_not_asked_for(self):
        extra = guarded(self.MOVED, self.SIZES)
        del extra["num_examples"]
        for settings in ({}, {"standardise": True}):
            _, metrics, _ = play(clusterguard, around(np.ones(SIZE), 10), extra, **settings)
            np.testing.assert_array_equal(metrics["cluster"], self.ODD)
        with pytest.raises(TypeError, match="num_examples"):
            play(clusterguard, around(np.ones(SIZE), 10), extra, **STANDARDISED)

    @pytest.mark.thorough
    def test_a_feature_that_all_share_says_nothing(self):
        for number, settings in ((10, {}), (10, STANDARDISED), (100, {})):  # exp(100) is beyond float32
            extra = guarded([0.3] * number, [50] * number)
            _, metrics, _ = play(clusterguard, around(np.ones(SIZE), number), extra, **settings)
            np.testing.assert_allclose(metrics["weight"], 1 / number, rtol=1e-6)

    @pytest.mark.thorough
    def test_what_differs_by_rounding_is_not_parted(self):
        """The sums over examples that make up a dissimilarity end in noise; clusters do not hang on it."""
        moved = np.float32(0.3) + np.float32(3e-8) * np.arange(10, dtype=np.float32)
        assert len(np.unique(moved)) > 1
        for settings in ({}, {"standardise": True}):
            _, metrics, _ = play(clusterguard, around(np.ones(SIZE), 10), guarded(moved, [50] * 10), **settings)
            assert not metrics["cluster"].any()
            np.testing.assert_allclose(metrics["weight"], 0.1, rtol=1e-6)

    def test_a_client_without_a_finite_dissimilarity_is_absent(self):
        moved = np.where(np.arange(10) == 2, np.nan, self.MOVED)
        _, metrics, _ = play(clusterguard, around(np.ones(SIZE), 10), guarded(moved, self.SIZES))
        assert metrics["weight"][2] == 0
        assert metrics["cluster"][2] == -1
        np.testing.assert_allclose(metrics["weight"].sum(), 1, rtol=1e-6)
        update, metrics, _ = play(clusterguard, around(np.ones(SIZE), 10), guarded([np.nan] * 10, self.SIZES))
        assert not update.any()
        assert not metrics["weight"].any()

    @pytest.mark.thorough
    def test_a_bucket_of_such_a_client_is_absent_and_the_others_count(self):
        G = np.eye(SIZE, dtype=np.float32)
        extra = {"dissimilarity": jnp.ones(SIZE).at[2].set(jnp.nan), "key": jax.random.key(0)}
        _, metrics, _ = play(bucketing, G, extra, aggregator=clusterguard(), bucket_size=2)
        assert metrics["weight"][2] == 0
        np.testing.assert_allclose(np.sort(metrics["weight"]), [0, 0, *[0.25] * 4])

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="num_clusters=0"):
            clusterguard(num_clusters=0)
        with pytest.raises(ValueError, match=r"emd='flat'.*flattened"):
            clusterguard(emd="flat")
        message = "standardise=False: must be True with use_num_examples, or the sizes alone decide"
        with pytest.raises(ValueError, match=message):
            clusterguard(use_num_examples=True)


class TestFoolsGold:
    def test_sybils_lose_their_weight_and_the_others_keep_theirs(self):
        """Three sybils send one direction; honest clients pull in their own, with noise."""
        rng, state = np.random.default_rng(0), None
        own = np.eye(SIZE)[:5]
        attack = np.full(SIZE, -1.0)
        extra = {"client_ids": jnp.arange(8)}
        for _ in range(4):
            honest = own + 0.3 * rng.normal(size=(5, SIZE))
            G = np.concatenate([honest, np.repeat(attack[None], 3, 0)])
            update, metrics, state = play(foolsgold, G, extra, state, num_clients=8)
        np.testing.assert_allclose(metrics["trust"], [1] * 5 + [0] * 3, atol=1e-3)
        np.testing.assert_allclose(metrics["weight"], metrics["trust"] / 8, rtol=1e-6)
        np.testing.assert_allclose(update, honest.sum(0) / 8, rtol=1e-4, atol=1e-5)

    @pytest.mark.thorough
    def test_history_follows_the_client_and_not_its_place(self):
        G = around(np.ones(SIZE), 8, 1.0)
        ids = np.array([3, 1, 7, 5, 0, 2, 11, 9])
        _, _, state = play(foolsgold, G, {"client_ids": jnp.asarray(ids)}, num_clients=12)
        expected = np.zeros((12, SIZE))
        expected[ids] = G
        np.testing.assert_allclose(state.history.rows["w"], expected)
        other = np.array([3, 4, 6, 8, 10, 2, 11, 9])
        H = np.copy(G)
        H[5] = np.nan
        _, metrics, state = play(foolsgold, H, {"client_ids": jnp.asarray(other)}, state, num_clients=12)
        expected[np.delete(other, 5)] += np.delete(G, 5, 0)
        np.testing.assert_allclose(state.history.rows["w"], expected, rtol=1e-6)
        assert metrics["trust"][5] == 0

    @pytest.mark.thorough
    def test_a_client_of_its_own_direction_counts_as_in_the_mean(self):
        G = np.diag(np.arange(1.0, SIZE + 1))
        update, metrics, _ = play(foolsgold, G, {"client_ids": jnp.arange(SIZE)}, num_clients=SIZE)
        np.testing.assert_array_equal(metrics["trust"], 1)
        np.testing.assert_allclose(update, G.mean(0), rtol=1e-6)

    @pytest.mark.thorough
    def test_pardon_of_a_client_that_resembles_sybils_by_chance(self):
        """By hand: cosines 0.6 of client 0 to two sybils, which are 0.8 apart from each other."""
        a = np.zeros((3, SIZE))
        a[1, :2], a[2, :2] = [1, 0], [0.8, 0.6]
        a[0, :3] = np.linalg.solve([[1, 0, 0], [0.8, 0.6, 0], [0, 0, 1]], [0.6, 0.6, 0.0])
        a[0, 2] = np.sqrt(1 - np.square(a[0, :2]).sum())
        _, metrics, _ = play(foolsgold, a, {"client_ids": jnp.arange(3)}, num_clients=3)
        apart = np.array([1 - 0.6 * 0.6 / 0.8, 0.2, 0.2])
        share = np.clip(apart / apart.max(), None, 0.99)
        np.testing.assert_allclose(metrics["trust"], np.clip(np.log(share / (1 - share)) + 0.5, 0, 1), atol=1e-4)


class TestFoolsGoldTaco:
    def test_weights_are_clipped_cosines_to_the_mean(self):
        G = np.concatenate([around(np.ones(SIZE), 6, 0.5), around(-np.ones(SIZE), 2)])
        update, metrics, _ = play(foolsgold_taco, G)
        mean = G.mean(0)
        cosine = G @ mean / np.linalg.norm(G, axis=1) / np.linalg.norm(mean)
        trust = np.maximum(cosine, 0)
        assert not trust[6:].any()
        np.testing.assert_allclose(metrics["cosine"], cosine, rtol=1e-4)
        np.testing.assert_allclose(metrics["trust"], trust, rtol=1e-4)
        np.testing.assert_allclose(update, trust @ G / trust.sum(), rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("builder", "settings"),
    [(clustering, {}), (clusterguard, {}), (foolsgold, {"num_clients": 8}), (foolsgold_taco, {})],
)
def test_gradients_are_finite_and_not_zero(builder, settings):
    rule = builder(**settings)
    state = rule.init({"w": jnp.zeros(SIZE)})
    extra = guarded(np.linspace(0.1, 0.5, 8) ** 2, np.arange(20, 28)) | {"client_ids": jnp.arange(8)}

    @jax.jit
    @jax.grad
    def gradient(inputs):
        G, moved = inputs
        params, _ = rule.apply({"w": jnp.zeros(SIZE)}, {"w": G}, state, **extra | {"dissimilarity": moved})
        return jnp.square(params["w"]).sum()

    by_delta, by_dissimilarity = gradient((jnp.asarray(around(np.ones(SIZE), 8, 1.0)), extra["dissimilarity"]))
    assert np.isfinite(by_delta).all()
    assert np.abs(by_delta).max() > 1e-4
    assert np.isfinite(by_dissimilarity).all()
    assert np.any(by_dissimilarity) == (builder is clusterguard)
