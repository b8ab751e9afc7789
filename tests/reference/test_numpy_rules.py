"""The rules against twins written from their formulas in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_rules
from reference.twins import INPUTS, SIZE, as_tree, as_vector, random, seldom

from fedjax_drag import aggregators
from fedjax_drag.tree import initial_state

COHORTS = [1, 2, 3, 10, 41]
ROUNDS = 3


def falling(round):
    """A schedule that both sides can evaluate."""
    return 0.5 / (1.0 + round)


class Pair:
    """A rule beside its twin, ``(G, state, round, extra) -> Outcome``; both refuse a cohort below ``smallest``."""

    def __init__(self, rule, twin, smallest=1):
        self.rule, self.twin, self.smallest = rule, twin, smallest
        self.apply = jax.jit(rule.apply)


PAIRS = {
    "fedavg": Pair(aggregators.fedavg(), lambda G, s, t, e: numpy_rules.fedavg(G)),
    "fedavg-examples": Pair(
        aggregators.fedavg(weighting="examples"), lambda G, s, t, e: numpy_rules.fedavg(G, e["num_examples"])
    ),
    "drag": Pair(aggregators.drag(c=0.25, alpha=0.25), lambda G, s, t, e: numpy_rules.drag(G, s, 0.25, 0.25)),
    "drag-strong": Pair(aggregators.drag(c=1.0, alpha=1.0), lambda G, s, t, e: numpy_rules.drag(G, s, 1.0, 1.0)),
    "drag-angle": Pair(
        aggregators.drag(c=0.5, alpha=0.6, divergence="angle"),
        lambda G, s, t, e: numpy_rules.drag(G, s, 0.5, 0.6, "angle"),
    ),
    "br_drag": Pair(aggregators.br_drag(c=0.5), lambda G, s, t, e: numpy_rules.br_drag(G, e["root_delta"], 0.5)),
    "br_drag-schedule": Pair(
        aggregators.br_drag(c=falling), lambda G, s, t, e: numpy_rules.br_drag(G, e["root_delta"], falling(t))
    ),
    "fltrust": Pair(aggregators.fltrust(), lambda G, s, t, e: numpy_rules.fltrust(G, e["root_delta"])),
    "fltrust-projection": Pair(
        aggregators.fltrust(projection=True), lambda G, s, t, e: numpy_rules.fltrust(G, e["root_delta"], True)
    ),
    "median": Pair(aggregators.median(), lambda G, s, t, e: numpy_rules.median(G)),
    "krum": Pair(aggregators.krum(num_byzantine=0), lambda G, s, t, e: numpy_rules.krum(G, 0), smallest=3),
    "krum-2": Pair(aggregators.krum(num_byzantine=2), lambda G, s, t, e: numpy_rules.krum(G, 2), smallest=5),
}


def extras(rng, S, t, scale=1.0):
    return {
        "round": np.int32(t),
        "root_delta": (scale * rng.normal(size=SIZE)).astype(np.float32),
        "num_examples": rng.integers(1, 500, S).astype(np.int32),
    }


@functools.cache
def start(name, S):
    """State of the first round for S clients."""
    rule = PAIRS[name].rule
    extra = extras(np.random.default_rng(0), S, 0)
    zero = as_tree(np.zeros(SIZE))
    deltas = as_tree(np.zeros((S, SIZE)))
    extra["root_delta"] = as_tree(extra["root_delta"])
    return initial_state(rule.apply, rule.init(zero), zero, deltas, **extra)


def play(name, cohorts, rng, scale=1.0):
    """Yields (update, metrics, outcome, G) of each round; both sides start each round from zero parameters."""
    pair, state, twin_state = PAIRS[name], start(name, len(cohorts[0])), None
    for t, G in enumerate(cohorts):
        G = G.astype(np.float32)
        extra = extras(rng, len(G), t, scale)
        on_device = {**extra, "root_delta": as_tree(extra["root_delta"])}
        params, state = pair.apply(as_tree(np.zeros(SIZE)), as_tree(G), state, **on_device)
        exact = {key: np.asarray(value, np.float64) for key, value in extra.items()}
        outcome = pair.twin(G.astype(np.float64), twin_state, t, exact)
        twin_state = outcome.state
        yield as_vector(params), state.metrics, outcome, G.astype(np.float64)


def assert_agrees(update, metrics, outcome):
    """The whole update to 1e-5 of its norm, and what the rule says about its clients."""
    error = np.linalg.norm(update - outcome.update)
    assert error <= 1e-5 * np.linalg.norm(outcome.update), (update, outcome.update)
    np.testing.assert_allclose(metrics["cosine"], outcome.cosine, atol=1e-5)
    if np.isfinite(outcome.weight).all():
        atol = 1e-5 * abs(outcome.weight).max()
        np.testing.assert_allclose(metrics["weight"], outcome.weight, rtol=1e-4, atol=atol)


VARIANTS = {"fedavg-examples", "drag-strong", "br_drag-schedule", "fltrust-projection"}
SIZES = [seldom(name, S, unless=S == 10) for name in PAIRS for S in COHORTS if name not in VARIANTS or S in (1, 10)]


@pytest.mark.parametrize(("name", "S"), SIZES)
@pytest.mark.sample(8)
def test_agrees_with_its_twin(name, S):
    """Three rounds of every kind of input."""
    if PAIRS[name].smallest > S:
        with pytest.raises(ValueError, match="num_byzantine="):
            start(name, S)
        with pytest.raises(ValueError, match="num_byzantine="):
            PAIRS[name].twin(np.ones((S, SIZE)), None, 0, {})
        return
    for number, kind in enumerate(INPUTS):
        rng = np.random.default_rng([S, number])
        cohorts = [kind(rng, S) for _ in range(ROUNDS)]
        for t, (update, metrics, outcome, G) in enumerate(play(name, cohorts, rng)):
            if name.startswith("krum"):
                check_krum(update, metrics, G, int(name[5:] or 0))
            else:
                try:
                    assert_agrees(update, metrics, outcome)
                except AssertionError as error:
                    raise AssertionError(f"{kind.__name__}, round {t}") from error


def check_krum(update, metrics, G, num_byzantine):
    """The chosen delta is one that has the lowest score; the only one unless scores are tied to 1e-6."""
    scores = numpy_rules.krum_scores(G, num_byzantine)
    chosen = int(np.argmax(metrics["weight"]))
    np.testing.assert_array_equal(metrics["weight"], np.eye(len(G))[chosen])
    np.testing.assert_array_equal(update, G[chosen])
    assert scores[chosen] <= scores.min() * (1 + 1e-5)


@pytest.mark.thorough
def test_krum_takes_n_minus_f_minus_2_neighbours():
    """Five clients on a line: each number of neighbours from 1 to 3 has another winner."""
    G = np.zeros((5, SIZE))
    G[:, 0] = [0.0, 1.0, 4.0, 5.5, 7.5]
    winners = [int(np.argmin(numpy_rules.krum_scores(G, f))) for f in (0, 1, 2)]
    # Squared distances, nearest first: client 0: 1, 16, 30.25; 1: 1, 9, 20.25; 2: 2.25, 9, 12.25; 3: 2.25, 4, 20.25;
    # 4: 4, 12.25, 42.25. Three of them: 47.25, 30.25, 23.5, 26.5, 58.5. Two: 17, 10, 11.25, 6.25, 16.25.
    assert winners == [2, 3, 0]
    zero = as_tree(np.zeros(SIZE))
    for f, winner in enumerate(winners):
        rule = aggregators.krum(num_byzantine=f)
        params, _ = jax.jit(rule.apply)(zero, as_tree(G), rule.init(zero))
        assert as_vector(params)[0] == G[winner, 0]
    with pytest.raises(ValueError, match="num_byzantine=3"):
        jax.eval_shape(aggregators.krum(num_byzantine=3).apply, zero, as_tree(G), rule.init(zero))


def test_krum_among_close_deltas_far_from_the_origin():
    """Where ``|x|^2 + |y|^2 - 2xy`` in float32 has no correct digit."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        G = 3e3 * rng.normal(size=SIZE) + 0.05 * random(rng, 10)
        ((update, metrics, _, exact),) = play("krum-2", [G], rng)
        check_krum(update, metrics, exact, 2)


@pytest.mark.parametrize("size", [1e3, 1e12, 1e25, 1e30])
def test_krum_is_not_blinded_by_a_huge_delta(size):
    """Two enormous deltas leave the choice among the others as it was."""
    rng = np.random.default_rng(4)
    G = random(rng, 10)
    G[[2, 7]] *= size
    ((update, metrics, _, exact),) = play("krum-2", [G], rng)
    check_krum(update, metrics, exact, 2)


@pytest.mark.sample(4)
@pytest.mark.parametrize("scale", [1e30, seldom(1e-30, unless=False)])
@pytest.mark.parametrize("name", PAIRS)
def test_extreme_norms(name, scale):
    """Squares of these over- and underflow in float32; nothing that a rule computes may."""
    rng = np.random.default_rng(7)
    cohorts = [scale * random(rng, 10) for _ in range(ROUNDS)]
    for update, metrics, outcome, _ in play(name, cohorts, rng, scale):
        assert_agrees(update, metrics, outcome)


@pytest.mark.sample(2)
@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("name", ["br_drag", "fltrust", "fltrust-projection"])
def test_extreme_norms_beside_an_ordinary_reference(name, scale):
    rng = np.random.default_rng(8)
    for update, metrics, outcome, _ in play(name, [scale * random(rng, 10)], rng):
        assert_agrees(update, metrics, outcome)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["drag", "drag-strong", "drag-angle"])
@pytest.mark.parametrize("scales", [(1e-30, 1e30, 1.0), (1e30, 1e-30, 1.0)], ids=["growing", "shrinking"])
def test_drag_when_reference_and_deltas_are_of_different_worlds(name, scales):
    """The ratio of their norms overflows in float32."""
    rng = np.random.default_rng(9)
    for update, metrics, outcome, _ in play(name, [scale * random(rng, 10) for scale in scales], rng):
        assert_agrees(update, metrics, outcome)


def test_degree_of_divergence_metric():
    for name, (c, kind) in {"drag": (0.25, "cosine"), "drag-angle": (0.5, "angle"), "br_drag": (0.5, "cosine")}.items():
        rng = np.random.default_rng(2)
        for _, metrics, outcome, _ in play(name, [random(rng, 10) for _ in range(ROUNDS)], rng):
            expected = numpy_rules.degree_of_divergence(outcome.cosine, c, kind)
            np.testing.assert_allclose(metrics["divergence"], expected, atol=1e-5)
            assert (metrics["divergence"] >= 0).all()
            assert (metrics["divergence"] <= 2 * c + 1e-6).all()


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
    cohorts = [G.astype(np.float32) for G in cohorts]
    twin, outcomes = numpy_rules.rounds(
        lambda G, state, t: numpy_rules.drag(G, state, 0.25, 0.25), np.zeros(SIZE), cohorts
    )
    pair, theta, state = PAIRS["drag"], as_tree(np.zeros(SIZE)), start("drag", 10)
    for G, expected in zip(cohorts, twin, strict=True):
        theta, state = pair.apply(theta, as_tree(G), state)
        np.testing.assert_allclose(as_vector(theta), expected, rtol=1e-5, atol=1e-6)
    assert outcomes[0] is None


@pytest.mark.parametrize("name", ["drag", "drag-angle", "br_drag", "fltrust", "fltrust-projection"])
def test_zero_rows_and_zero_references(name):
    """A zero among the deltas; then a zero reference."""
    rng = np.random.default_rng(5)
    G = random(rng, 10)
    G[[0, 6]] = 0
    for update, metrics, outcome, _ in play(name, [G, G[::-1]], rng):
        assert_agrees(update, metrics, outcome)
    for update, metrics, outcome, _ in play(name, [0 * G, G, random(rng, 10)], rng, scale=0.0):
        assert_agrees(update, metrics, outcome)
