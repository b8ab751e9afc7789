"""What the rules built on distances, and the wrappers, promise by their definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.aggregators import bucketing, bulyan, drag, fedavg, foolsgold, krum, median, monna, multi_krum, nnm

COHORT, SIZE = 9, 6
ALL = np.ones(COHORT, bool)
SEEDS = range(5)


def draw(seed=0):
    return np.random.default_rng(seed).normal(size=(COHORT, SIZE)).astype(np.float32)


def as_tree(G):
    return {"a": G[..., :4], "b": G[..., 4:]}


RULES = {
    "drag": drag(),
    "krum": krum(2),
    "multi_krum": multi_krum(2),
    "multi_krum-all": multi_krum(0),
    "bulyan": bulyan(1),
    "bulyan-0": bulyan(0),
    "nnm-median": nnm(median(), 2),
    "nnm-krum": nnm(krum(2), 2),
    "nnm-drag-0": nnm(drag(), 0),
    "bucketing-median": bucketing(median()),
    "bucketing-krum": bucketing(krum(1)),
    "bucketing-1-drag": bucketing(drag(), 1),
    "bucketing-1-krum": bucketing(krum(2), 1),
    "bucketing-all": bucketing(drag(), COHORT),
    "bucketing-examples": bucketing(fedavg(weighting="examples")),
}


@functools.cache
def compiled(name):
    """A round from zero: ``(before, G, valid, key, num_examples) -> (update, metrics)``; one before it for DRAG."""
    rule = RULES[name]

    @jax.jit
    def rounds(before, G, valid, key, num_examples):
        zero = as_tree(jnp.zeros(SIZE))
        told = {"valid": valid, "key": key, "num_examples": num_examples}
        state = rule.init(zero)
        if "drag" in name:
            _, state = rule.apply(zero, as_tree(before), state, **told)
        moved, state = rule.apply(zero, as_tree(G), state, **told)
        return jnp.concatenate([moved["a"], moved["b"]]), state.metrics

    return rounds


def run(name, G, before=None, valid=ALL, seed=0, num_examples=None):
    examples = np.arange(1, COHORT + 1) if num_examples is None else num_examples
    update, metrics = compiled(name)(G if before is None else before, G, valid, jax.random.key(seed), examples)
    return np.asarray(update), {key: np.asarray(value) for key, value in metrics.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["krum", "multi_krum", "bulyan", "nnm-krum"])
def test_translation_rotation_and_scale_change_no_choice(name):
    """And the update moves with the clients, except that bulyan's coordinates do not turn with them."""
    for seed in SEEDS:
        G, rng = draw(seed), np.random.default_rng(seed)
        update, metrics = run(name, G)
        turn = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0].astype(np.float32)
        shift = 100 * rng.normal(size=SIZE).astype(np.float32)
        changes = {"shift": lambda x, s=shift: x + s, "turn": lambda x, t=turn: x @ t, "scale": lambda x: 1e12 * x}
        for kind, change in changes.items():
            after, later = run(name, change(G))
            chosen = "selected" if "selected" in metrics else "weight"
            np.testing.assert_allclose(later[chosen], metrics[chosen], atol=1e-6)
            if (name, kind) != ("bulyan", "turn"):
                np.testing.assert_allclose(after, change(update), atol=1e-5 * np.abs(change(G)).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multi_krum-all", "bulyan-0", "bucketing-all", "nnm-drag-0"])
def test_without_malicious_clients_the_mean(name):
    G = draw()
    expected = G.mean(0) if name != "nnm-drag-0" else run("drag", np.tile(G.mean(0), (COHORT, 1)))[0]
    update, metrics = run(name, G)
    np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)
    if "nnm" not in name:
        np.testing.assert_allclose(metrics["weight"], 1 / COHORT, rtol=1e-5)


@pytest.mark.slow
def test_bulyan_shares_the_edge_between_values_equally_far_from_the_median():
    """Of seven, five are chosen and three averaged: the median 0, and of the four at distance 1 two."""
    G = np.zeros((COHORT, SIZE), np.float32)
    valid = np.arange(COHORT) < 7
    G[:7] = np.array([-1, 1, 0, 1, -1, 50, -50])[:, None]
    update, metrics = run("bulyan", G, valid=valid)
    np.testing.assert_array_equal(metrics["selected"], [1, 1, 1, 1, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(update, 0, atol=1e-7)
    np.testing.assert_allclose(metrics["weight"], [1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6, 0, 0, 0, 0], rtol=1e-5)


@pytest.mark.slow
def test_bulyan_does_not_depend_on_the_order_of_clients():
    """Its last choice is between the two nearest to each other, whose scores tie."""
    for seed in range(20):
        G, order = draw(seed), np.random.default_rng(seed).permutation(COHORT)
        valid = np.arange(COHORT) < 7 + seed % 3
        update, metrics = run("bulyan", G, valid=valid)
        again, permuted = run("bulyan", G[order], valid=valid[order])
        np.testing.assert_array_equal(permuted["selected"], metrics["selected"][order])
        np.testing.assert_allclose(again, update, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["krum", "multi_krum", "bulyan", "nnm-median", "nnm-krum"])
def test_an_outlier_does_not_matter(name):
    """Whatever its length, the update stays as near to the others as without it."""
    for seed in SEEDS:
        G = draw(seed)
        spread = np.linalg.norm(G[1:] - G[1:].mean(0), axis=1).max()
        for length in (1e6, 1e30):
            G[0] = length * draw(seed)[0]
            update, metrics = run(name, G)
            assert np.linalg.norm(update - G[1:].mean(0)) <= 1.01 * spread
            if "nnm" not in name:
                assert metrics["weight"][0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e-15, 1e15])
@pytest.mark.parametrize("seed", SEEDS)
def test_krum_may_sum_the_fourth_powers_of_distances(seed, scale):
    G = draw(seed)
    apart = np.linalg.norm(G[:, None] - G, axis=-1).astype(np.float64)
    nearest = np.sort(apart + np.diag(np.full(COHORT, np.inf)))[:, : COHORT - 2 - 2]
    score = (nearest**4).sum(1) ** 0.25
    rule = krum(2, distance_power=4)
    zero = as_tree(jnp.zeros(SIZE))
    moved, state = jax.jit(rule.apply)(zero, as_tree(G * np.float32(scale)), rule.init(zero), valid=ALL)
    np.testing.assert_allclose(state.metrics["score"] / scale, score, rtol=1e-5)
    np.testing.assert_array_equal(np.concatenate([moved["a"], moved["b"]]), G[score.argmin()] * np.float32(scale))


@pytest.mark.parametrize("inner", ["drag", "krum"])
def test_buckets_of_one_are_the_rule_itself(inner):
    for seed in SEEDS:
        plain, before = run(inner, draw(seed), draw(seed + 1))
        wrapped, after = run(f"bucketing-1-{inner}", draw(seed), draw(seed + 1), seed=seed)
        np.testing.assert_allclose(wrapped, plain, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after["weight"], before["weight"], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_buckets_weighted_by_examples_are_weighted_by_their_sum():
    """Nine clients in pairs: four buckets of two, and one of one."""
    G, examples = draw(), np.arange(1, COHORT + 1) ** 2
    for seed in SEEDS:
        _, metrics = run("bucketing-examples", G, seed=seed, num_examples=examples)
        shares = np.round(metrics["weight"] * examples.sum(), 3)
        values, counts = np.unique(shares, return_counts=True)
        assert sorted(counts) == [1, 2, 2, 2, 2]
        for value, count in zip(values, counts, strict=True):
            np.testing.assert_allclose(examples[shares == value].sum() / count, value, rtol=1e-3)


@pytest.mark.thorough
def test_valid_clients_fill_the_buckets():
    G, valid = draw(), np.arange(COHORT) % 2 == 0
    G[~valid] = np.nan
    groups = set()
    for seed in range(10):
        update, metrics = run("bucketing-krum", G, valid=valid, seed=seed)
        members = np.flatnonzero(metrics["weight"])
        assert valid[members].all()
        np.testing.assert_allclose(update, G[members].mean(0), rtol=1e-5)
        groups.add(tuple(members))
    assert len(groups) > 2
    assert {len(group) for group in groups} <= {1, 2}


def test_wrappers_need_what_the_wrapped_rule_needs():
    remembers = foolsgold(num_clients=20)
    assert nnm(remembers, 1).needs == remembers.needs
    assert nnm(remembers).needs == remembers.needs | {"num_byzantine"}
    with pytest.raises(ValueError, match=r"needs=\['client_ids'\].*client_ids"):
        bucketing(remembers)
    with pytest.raises(ValueError, match="client_ids"):
        bucketing(nnm(remembers))
    with pytest.raises(ValueError, match="client_ids"):
        bucketing(monna(1, trusted=0))  # a bucket of that place would be trusted
    rule, zero = bucketing(fedavg()), as_tree(jnp.zeros(SIZE))
    with pytest.raises(TypeError, match="key"):
        rule.apply(zero, as_tree(draw()), rule.init(zero))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: multi_krum(-1), "num_byzantine=-1"),
        (lambda: krum(1, distance_power=1), "distance_power=1"),
        (lambda: multi_krum(1, num_selected=0), "num_selected=0"),
        (lambda: bulyan(0.5), "num_byzantine=0.5"),
        (lambda: nnm(fedavg(), -2), "num_byzantine=-2"),
        (lambda: bucketing(fedavg(), 0), "bucket_size=0"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, name):
    with pytest.raises(ValueError, match=name) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (multi_krum(COHORT - 2), "num_byzantine=7.*at most.*6"),
        (multi_krum(1, num_selected=10), "num_selected=10.*at most 9"),
        (bulyan(2), "num_byzantine=2.*at most 1"),
        (nnm(fedavg(), 9), "num_byzantine=9.*at most.*8"),
    ],
)
def test_too_small_a_cohort_is_refused(rule, name):
    zero = as_tree(jnp.zeros(SIZE))
    with pytest.raises(ValueError, match=name) as error:
        jax.eval_shape(rule.apply, zero, as_tree(draw()), rule.init(zero))
    assert "\n" not in str(error.value)
