"""The rules against twins written from their formulas in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import falling
from reference import numpy_robust, numpy_rules, twins
from reference.twins import SIZE, Pair, as_tree, as_vector, random, seldom

from fedjax_drag import aggregators
from fedjax_drag.tree import initial_state

COHORTS = [1, 2, 3, 10, 41]
ROUNDS = 3


def check_krum(played, num_byzantine):
    """The chosen delta is one that has the lowest score; the only one unless scores are tied to 1e-6."""
    scores = numpy_robust.krum_scores(played.G, len(played.G) - num_byzantine - 2)
    weight = played.metrics["weight"][played.seen]
    chosen = int(np.argmax(weight))
    np.testing.assert_array_equal(weight, np.eye(len(played.G))[chosen])
    np.testing.assert_array_equal(played.update, played.G[chosen])
    assert scores[chosen] <= scores.min() * (1 + 1e-5)


def krum(num_byzantine):
    check = functools.partial(check_krum, num_byzantine=num_byzantine)
    return Pair("krum", {"num_byzantine": num_byzantine}, check=check, smallest=num_byzantine + 3)


PAIRS = {
    "fedavg": Pair("fedavg", {}, lambda G, s, t, e: numpy_rules.fedavg(G)),
    "fedavg-examples": Pair(
        "fedavg", {"weighting": "examples"}, lambda G, s, t, e: numpy_rules.fedavg(G, e["num_examples"])
    ),
    "drag": Pair("drag", {"c": 0.25, "alpha": 0.25}, lambda G, s, t, e: numpy_rules.drag(G, s, 0.25, 0.25)),
    "drag-strong": Pair("drag", {"c": 1.0, "alpha": 1.0}, lambda G, s, t, e: numpy_rules.drag(G, s, 1.0, 1.0)),
    "drag-angle": Pair(
        "drag",
        {"c": 0.5, "alpha": 0.6, "divergence": "angle"},
        lambda G, s, t, e: numpy_rules.drag(G, s, 0.5, 0.6, "angle"),
    ),
    "br_drag": Pair("br_drag", {"c": 0.5}, lambda G, s, t, e: numpy_rules.br_drag(G, e["root_delta"], 0.5)),
    "br_drag-schedule": Pair(
        "br_drag", {"c": falling}, lambda G, s, t, e: numpy_rules.br_drag(G, e["root_delta"], falling(t))
    ),
    "fltrust": Pair("fltrust", {}, lambda G, s, t, e: numpy_rules.fltrust(G, e["root_delta"])),
    "fltrust-projection": Pair(
        "fltrust", {"projection": True}, lambda G, s, t, e: numpy_rules.fltrust(G, e["root_delta"], True)
    ),
    "median": Pair("median", {}, lambda G, s, t, e: numpy_rules.median(G)),
    "krum": krum(0),
    "krum-2": krum(2),
}

VARIANTS = {"fedavg-examples", "drag-strong", "br_drag-schedule", "fltrust-projection"}
SIZES = [seldom(name, S, unless=S == 10) for name in PAIRS for S in COHORTS if name not in VARIANTS or S in (1, 10)]


@pytest.mark.parametrize(("name", "S"), SIZES)
@pytest.mark.sample(8)
def test_agrees_with_its_twin(name, S):
    """Three rounds of every kind of input."""
    if PAIRS[name].smallest > S:
        with pytest.raises(ValueError, match="num_byzantine="):
            PAIRS[name].start(S)
    else:
        twins.duel(PAIRS[name], S)


@pytest.mark.thorough
def test_krum_takes_n_minus_f_minus_2_neighbours():
    """Five clients on a line: each number of neighbours from 1 to 3 has another winner."""
    G = np.zeros((5, SIZE))
    G[:, 0] = [0.0, 1.0, 4.0, 5.5, 7.5]
    # Squared distances, nearest first: client 0: 1, 16, 30.25; 1: 1, 9, 20.25; 2: 2.25, 9, 12.25; 3: 2.25, 4, 20.25;
    # 4: 4, 12.25, 42.25. Three of them: 47.25, 30.25, 23.5, 26.5, 58.5. Two: 17, 10, 11.25, 6.25, 16.25.
    zero = as_tree(np.zeros(SIZE))
    for f, winner in enumerate([2, 3, 0]):
        assert numpy_robust.krum_scores(G, 3 - f).argmin() == winner
        rule = aggregators.krum(num_byzantine=f)
        params, _ = jax.jit(rule.apply)(zero, as_tree(G), rule.init(zero))
        assert as_vector(params)[0] == G[winner, 0]
    with pytest.raises(ValueError, match="num_byzantine=3"):
        jax.eval_shape(aggregators.krum(num_byzantine=3).apply, zero, as_tree(G), rule.init(zero))


def test_krum_among_close_deltas_far_from_the_origin():
    """Where ``|x|^2 + |y|^2 - 2xy`` in float32 has no correct digit."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        twins.verify_all(PAIRS["krum-2"], [3e3 * rng.normal(size=SIZE) + 0.05 * random(rng, 10)], rng)


@pytest.mark.parametrize("size", [1e3, 1e12, 1e25, 1e30])
def test_krum_is_not_blinded_by_a_huge_delta(size):
    """Two enormous deltas leave the choice among the others as it was."""
    rng = np.random.default_rng(4)
    G = random(rng, 10)
    G[[2, 7]] *= size
    twins.verify_all(PAIRS["krum-2"], [G], rng)


@pytest.mark.sample(4)
@pytest.mark.parametrize("scale", [1e30, seldom(1e-30, unless=False)])
@pytest.mark.parametrize("name", PAIRS)
def test_extreme_norms(name, scale):
    twins.verify_extreme(PAIRS[name], scale)


@pytest.mark.sample(2)
@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("name", ["br_drag", "fltrust", "fltrust-projection"])
def test_extreme_norms_beside_an_ordinary_reference(name, scale):
    rng = np.random.default_rng(8)
    twins.verify_all(PAIRS[name], [scale * random(rng, 10)], rng)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["drag", "drag-strong", "drag-angle"])
@pytest.mark.parametrize("scales", [(1e-30, 1e30, 1.0), (1e30, 1e-30, 1.0)], ids=["growing", "shrinking"])
def test_drag_when_reference_and_deltas_are_of_different_worlds(name, scales):
    """The ratio of their norms overflows in float32."""
    rng = np.random.default_rng(9)
    twins.verify_all(PAIRS[name], [scale * random(rng, 10) for scale in scales], rng)


def test_degree_of_divergence_metric():
    for name, (c, kind) in {"drag": (0.25, "cosine"), "drag-angle": (0.5, "angle"), "br_drag": (0.5, "cosine")}.items():
        rng = np.random.default_rng(2)
        for played in twins.play(PAIRS[name], [random(rng, 10) for _ in range(ROUNDS)], rng):
            expected = numpy_rules.degree_of_divergence(played.outcome.cosine, c, kind)
            np.testing.assert_allclose(played.metrics["divergence"], expected, atol=1e-5)
            assert (played.metrics["divergence"] >= 0).all()
            assert (played.metrics["divergence"] <= 2 * c + 1e-6).all()


def test_the_oracle_of_br_drag_is_that_of_theorem_2():
    """``w / (w - x)`` of the attackers that count, at most 1; without one the strength is ``c``."""
    rule, zero = aggregators.br_drag(c=0.25, oracle=True), {"w": jnp.zeros(2)}
    apply, r = jax.jit(rule.apply), np.array([2.0, 0.0])
    G, cosine = np.array([[-1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.6, 0.8]]), np.array([-1, 0, 1, 0.6])
    for malicious, absent, strength in (
        ([0, 1], [], 2 / 3),
        ([0, 3], [], 2 / 2.4),
        ([0, 3], [0], 1.0),  # 1 / 0.4
        ([0, 1], [0, 1], 0.25),
        ([], [], 0.25),
    ):
        attackers, there = np.isin(np.arange(4), malicious), ~np.isin(np.arange(4), absent)
        told = {"root_delta": {"w": r}, "malicious": attackers, "valid": there}
        moved, state = apply(zero, {"w": G}, rule.init(zero), **told)
        np.testing.assert_allclose(moved["w"], numpy_rules.br_drag(G[there], r, strength).update, rtol=1e-5, atol=1e-6)
        found = state.metrics["divergence"][there]
        np.testing.assert_allclose(found, strength * (1 - cosine[there]), rtol=1e-5, atol=1e-6)


def test_drag_remembers_two_rounds_worked_by_hand():
    """Two clients in the plane, c = 1/2, alpha = 1/2.

    Round 0: g = (2, 0), (0, 2); r_0 = (1, 1), cosines 1/sqrt2, lambda = (1 - 1/sqrt2)/2 = l for both,
    v_m = (1-l) g_m + l sqrt2 r_0, Delta_0 = ((1-l) + l sqrt2) (1, 1) = s (1, 1).
    Round 1: r_1 = r_0 / 2 + Delta_0 / 2 = (1+s)/2 (1, 1), g = (3, 3), (-1, -1): cosines 1, -1, lambdas 0, 1,
    v = (3, 3), (1, 1), so Delta_1 = (2, 2) whatever the length of r_1.
    Round 2: r_2 = ((1+s)/4 + 1) (1, 1).
    """
    rule = aggregators.drag(c=0.5, alpha=0.5)
    apply, zero = jax.jit(rule.apply), {"w": jnp.zeros(2)}
    theta, state = zero, initial_state(rule.apply, rule.init(zero), zero, {"w": jnp.zeros((2, 2))})
    half = (1 - 1 / np.sqrt(2)) / 2
    s = (1 - half) + half * np.sqrt(2)
    theta, state = apply(theta, {"w": jnp.array([[2.0, 0.0], [0.0, 2.0]])}, state)
    np.testing.assert_allclose(theta["w"], [s, s], rtol=1e-6)
    theta, state = apply(theta, {"w": jnp.array([[3.0, 3.0], [-1.0, -1.0]])}, state)
    np.testing.assert_allclose(theta["w"], [s + 2, s + 2], rtol=1e-6)
    np.testing.assert_allclose(state.metrics["divergence"], [0, 1], atol=1e-6)
    # A delta across the reference: cosine 0, lambda 1/2, v = (1, -1)/2 + (1, 1)/2 = (1, 0).
    theta, state = apply(theta, {"w": jnp.array([[1.0, -1.0], [1.0, -1.0]])}, state)
    np.testing.assert_allclose(theta["w"], [s + 3, s + 2], rtol=1e-6)


def test_drag_forgets_its_reference_only_in_rounds_that_count():
    """A first round in which all are rejected leaves the first reference to the second round."""
    rng = np.random.default_rng(3)
    cohorts = [np.full((10, SIZE), np.nan), random(rng, 10), random(rng, 10)]
    cohorts[2][3] = np.inf
    assert twins.verify_all(PAIRS["drag"], cohorts, rng) == 2


@pytest.mark.parametrize("name", ["drag", "drag-angle", "br_drag", "fltrust", "fltrust-projection"])
def test_zero_rows_and_zero_references(name):
    """A zero among the deltas; then a zero reference."""
    rng = np.random.default_rng(5)
    G = random(rng, 10)
    G[[0, 6]] = 0
    twins.verify_all(PAIRS[name], [G, G[::-1]], rng)
    twins.verify_all(PAIRS[name], [0 * G, G, random(rng, 10)], rng, scale=0.0)
