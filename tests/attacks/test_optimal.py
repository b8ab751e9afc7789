"""ALIE and IPM with a strength searched for through the rule: against NumPy, every strength tried, and ByzFL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cohorts import COHORT, MALICIOUS, cohorts, observed, sent, update_of, updates
from reference import numpy_attacks
from reference import numpy_directed_attacks as twin

from fedjax_drag import aggregators, attacks
from fedjax_drag.attacks._line_search import line_search

FEW = 8
PUSHES = {
    "optimal_alie": numpy_attacks.alie,
    "optimal_ipm": numpy_attacks.ipm,
}
"""What is sent with some strength, given the benign deltas."""

RULES = {
    "mean": aggregators.fedavg(),
    "krum": aggregators.krum(num_byzantine=MALICIOUS),
    "trimmed_mean": aggregators.trimmed_mean(trim_fraction=0.3),
    "median": aggregators.median(),
    "geometric_median": aggregators.geometric_median(),
    "nnm": aggregators.nnm(aggregators.trimmed_mean(trim_fraction=0.3), num_byzantine=MALICIOUS),
}


def redescending(x):
    """Grows up to 3, and falls beyond."""
    return x / (1 + (x / 3) ** 2)


def soft(uplink):
    """A rule for which more is not always more harmful: the mean of the redescending deltas."""
    return jax.tree.map(lambda x: redescending(x).mean(0), uplink.delta)


@pytest.mark.parametrize(("starts", "step", "ratio"), [((0.0,), 10.0, 0.8), ((3.0, -1.0, 0.5), 0.25, 0.6)])
def test_the_line_search_agrees_with_its_twin_and_returns_the_best_of_what_it_tries(starts, step, ratio):
    """Harms with one peak, from far below the first step to far above, and harms that are nowhere finite."""
    peaks = np.append(np.geomspace(1e-2, 1e4, 60), np.nan).astype(np.float32)
    harm = lambda strength, peak: jnp.where(jnp.isnan(peak), -jnp.inf, -jnp.abs(strength - peak))
    search = jax.vmap(lambda peak: line_search(lambda s: harm(s, peak), jnp.asarray(starts), 20, step, ratio))
    found = np.asarray(jax.jit(search)(peaks), np.float64)
    for peak, strength in zip(np.float64(peaks[:-1]), found[:-1], strict=True):
        expected, tried = twin.strongest(lambda s, peak=peak: -abs(s - peak), starts, 20, step, ratio)
        assert len(tried) == 20
        np.testing.assert_allclose(strength, expected, rtol=1e-5)
        assert abs(strength - peak) <= min(abs(s - peak) for s in tried) + 1e-5 * peak
    assert found[-1] == starts[0]


def test_the_line_search_ends_at_a_billion_however_long_more_is_more_harmful():
    found = jax.jit(lambda: line_search(lambda strength: strength, jnp.zeros(1), 60, 10.0, 0.8))()
    assert float(found) == 1e9


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("optimal_alie", {}, marks=pytest.mark.thorough),
        pytest.param("optimal_alie", {"step": 1.0, "starts": (0.5, 1.5)}, marks=pytest.mark.thorough),
        ("optimal_ipm", {"objective": "against", "evaluations": 9, "step": 0.25, "ratio": 0.6}),
        pytest.param("optimal_ipm", {"evaluations": 1, "starts": (0.7,)}, marks=pytest.mark.thorough),
    ],
)
def test_agrees_with_its_twin(name, settings):
    G, malicious = cohorts(seed=7, number=6)
    forged = sent(getattr(attacks, name)(**settings), aggregate=soft)(G, malicious)
    search = {"starts": (0.0,), "evaluations": 20, "step": 10.0, "ratio": 0.8} | settings
    objective = search.pop("objective", "distance")
    for g, attackers, rows in zip(G, malicious, forged, strict=True):
        known = observed(g, attackers, "full")
        mean = known.mean(0)

        def harm(strength, known=known, mean=mean):
            forged = np.tile(PUSHES[name](known, strength), (MALICIOUS, 1))
            u = redescending(np.concatenate([known, forged])).mean(0)
            return np.linalg.norm(u - mean) if objective == "distance" else -u @ twin.unit(mean)

        strength, tried = twin.strongest(harm, **search)
        assert len(tried) == search["evaluations"]
        np.testing.assert_array_equal(rows[~attackers], g[~attackers])
        np.testing.assert_allclose(rows[attackers], np.tile(PUSHES[name](known, strength), (MALICIOUS, 1)), rtol=2e-5)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(
            name, rule, marks=pytest.mark.slow if rule in ("geometric_median", "nnm") else pytest.mark.thorough
        )
        for name in PUSHES
        for rule in RULES
    ],
)
def test_at_least_as_harmful_as_every_fixed_strength_that_it_begins_with(name, rule):
    """Through rules with and without a gradient."""
    strengths = (0.0, 0.1, 0.5, 1.0, 1.5, 3.0)
    G, malicious = cohorts(seed=3, number=FEW)
    update = update_of(RULES[rule])
    aggregate = lambda uplink: update(uplink.delta, jax.tree.map(lambda x: x[0], uplink.delta))
    forged = sent(getattr(attacks, name)(starts=strengths), aggregate=aggregate)(G, malicious)
    benign = [observed(g, attackers, "full") for g, attackers in zip(G, malicious, strict=True)]
    mean = np.array([known.mean(0) for known in benign])
    fixed = np.array([[PUSHES[name](known, strength) for known in benign] for strength in strengths])
    rows = np.where(malicious[:, :, None], fixed[:, :, None], G)
    each = np.concatenate([forged[None], rows]).astype(np.float32)
    harms = np.linalg.norm(
        updates(RULES[rule], each.reshape(-1, *G.shape[1:])).reshape(-1, *mean.shape) - mean, axis=-1
    )
    assert (harms[0] >= harms[1:].max(0) - 1e-5).all()
    if rule == "mean":  # it gives way to any strength, so that all steps are doubled
        sizes = abs(forged - mean[:, None])[malicious].max(1)
        assert (sizes > 1e4).all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mean", "trimmed_mean"])
@pytest.mark.parametrize("name", PUSHES)
def test_agrees_with_byzfl(name, rule):
    byzfl = pytest.importorskip("byzfl")
    their_names = {known.lower().replace("_", ""): known for known in dir(byzfl)}
    attack = {"optimal_alie": "optimalalittleisenough", "optimal_ipm": "optimalinnerproductmanipulation"}[name]
    their_rule = byzfl.TrMean(f=MALICIOUS) if rule == "trimmed_mean" else byzfl.Average()
    theirs = getattr(byzfl, their_names[attack])(agg=their_rule, pre_agg_list=[], f=MALICIOUS)
    G, malicious = cohorts(seed=11, number=6)
    update = update_of(RULES[rule])
    benign = COHORT - MALICIOUS  # their code divides the variance by one less, so that steps in z are as much shorter
    step = 10 * np.sqrt(benign / (benign - 1)) if name == "optimal_alie" else 10.0
    side = {"side": "above"} if name == "optimal_alie" else {}  # they push gradients, here they are given deltas
    attack = getattr(attacks, name)(step=step, **side)
    forged = sent(attack, aggregate=lambda uplink: update(uplink.delta, None))(G, malicious)
    for g, attackers, rows in zip(G, malicious, forged, strict=True):
        expected = theirs(observed(g, attackers, "full"))
        np.testing.assert_allclose(rows[attackers], np.tile(expected, (MALICIOUS, 1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: attacks.optimal_alie(side="both"), "side='both': must be one of above, below"),
        (lambda: attacks.optimal_alie(objective="harm"), "objective='harm'"),
        (lambda: attacks.optimal_ipm(starts=()), r"starts=\(\): must be a list of strengths"),
        (lambda: attacks.optimal_alie(starts=1.0), r"starts=1.0: must be a list of strengths"),
        (lambda: attacks.optimal_ipm(starts=(0.0, np.nan)), "starts=nan"),
        (lambda: attacks.optimal_ipm(starts=(1e300,)), r"starts=1e\+300: must be in \[-1e\+09, 1e\+09\]"),
        (lambda: attacks.optimal_ipm(starts=(0.0, 1.0), evaluations=1), "evaluations=1: must be an integer >= 2"),
        (lambda: attacks.optimal_alie(step=0.0), "step=0.0"),
        (lambda: attacks.optimal_alie(ratio=1.0), r"ratio=1.0: must be in \(0, 1\)"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, message):
    with pytest.raises(ValueError, match=message) as error:
        build()
    assert "\n" not in str(error.value)
