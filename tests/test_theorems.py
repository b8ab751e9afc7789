"""What the papers prove about DRAG, BR-DRAG and TACO, on quadratics whose constants are known."""

import numpy as np
import pytest

from theorem_checks import bounds, consensus, inconsistency, measurements
from theorem_checks.quadratics import Quadratics

SMALL = bounds.Setting(smoothness=1.0, noise=0.3, heterogeneity=1.0, gap=10.0, step_size=0.01, local_steps=5)


def test_the_constants_are_those_of_the_losses():
    problem = Quadratics.draw(6, spread=0.5, noise=0.4, start=2.0, per_client=8)
    setting = problem.setting(0.01, 5, batch_size=4)
    for theta in np.random.default_rng(1).normal(size=(3, 4)):
        gradients = problem.curvature * (theta - problem.examples)
        of_client = gradients.mean(1)
        apart = ((of_client - of_client.mean(0)) ** 2).sum(-1)
        assert apart.max() == pytest.approx(setting.heterogeneity)
        noise = ((gradients - of_client[:, None]) ** 2).sum(-1).mean(1)
        assert noise.max() / 4 == pytest.approx(setting.noise)
        assert problem.squared_gradient(theta) == pytest.approx((of_client.mean(0) ** 2).sum())


def test_one_local_step_leaves_no_difference_between_statement_and_proof():
    one = SMALL._replace(local_steps=1)
    for proof in (bounds.XIAO, bounds.ZHU):
        printed = bounds.drag_bound(one, 0.01, 100, proof, printed=True)
        assert bounds.drag_bound(one, 0.01, 100, proof) == pytest.approx(printed)


def test_where_no_bound_on_drag_exists():
    limit = SMALL._replace(step_size=1 / 40)
    assert limit.reach == 1 / 8
    assert bounds.drag_rate(limit, 0.0, bounds.XIAO) < 0, "the largest step size that the theorems allow"
    tiny = SMALL._replace(step_size=1e-6)
    assert bounds.largest_c(tiny, bounds.XIAO) == pytest.approx(1 / 21, abs=1e-4)
    assert bounds.largest_c(tiny, bounds.ZHU) == pytest.approx(1 / 33, abs=1e-4)
    assert np.isinf(bounds.drag_bound(tiny, 0.05, np.array([10, 20]), bounds.XIAO)).all()


@pytest.mark.thorough
def test_drag_stays_below_its_bounds():
    theorem = measurements.drag_theorem((0.0, 0.02), rounds=20, seeds=1)
    assert theorem.setting.reach <= 1 / 8
    assert theorem.setting.smoothness == 1
    for proof in (bounds.XIAO, bounds.ZHU):
        assert bounds.drag_rate(theorem.setting, 0.02, proof) > 0
    for bound in theorem.bounds.values():
        assert (theorem.runs.means < bound).all()


@pytest.mark.slow
def test_br_drag_stays_below_its_bound():
    oracle = measurements.oracle_theorem(rounds=20, seeds=1)
    assert oracle.step_size < oracle.largest_step_size
    measured, bound = oracle.over_rounds.values()
    assert np.isfinite(bound).all(), "chi is positive"
    assert (measured < bound).all()


def test_the_oracle_leaves_nothing_of_the_malicious():
    rng = np.random.default_rng(0)
    w, x = np.full(5, 0.6), -rng.uniform(0.1, 0.6, 5)
    ones = np.ones(5)
    rounds = bounds.Rounds(w, x, 0.3 * ones, w / (w - x), ones, ones, 0.7, 1.3)
    assert rounds.unmet == pytest.approx(np.zeros(5), abs=1e-12)


@pytest.mark.thorough
def test_taco_orders_its_clients_as_corollary_2_asks():
    taco = measurements.taco_corollary()
    assert taco.smallest_cosine > 0, "Assumption 2"
    assert taco.order < -0.8
    # The term that this order should minimize does not depend on it, and in the other reading the reverse is smaller.
    other = taco.reversed
    assert bounds.over_correction(other, taco.ratios) == pytest.approx(bounds.over_correction(taco.alpha, taco.ratios))
    assert bounds.paired_correction(other, taco.ratios) < bounds.paired_correction(taco.alpha, taco.ratios)


@pytest.mark.slow
def test_over_c_the_bounds_end_long_before_the_rules_do():
    drag = measurements.drag_theorem((0.0, 0.02, 0.05, 0.25, 0.5), rounds=300, seeds=2)
    finite = np.isfinite(drag.bounds["Xiao et al."])
    assert finite.tolist() == [True, True, False, False, False]
    assert drag.runs.means[:4] == pytest.approx(drag.runs.means[0], rel=0.01), "the papers' c = 0.25 does no harm"
    assert drag.runs.means[4] > 2 * drag.runs.means[0], "only here it does not converge any more"
    br_drag = measurements.br_drag_theorem((0.1, 0.5, 0.9), rounds=300, seeds=1)
    bound = br_drag.bounds["Theorem 2"]
    assert np.isfinite(bound).tolist() == [False, True, False]
    assert br_drag.runs.means[1] < bound[1]
    assert (np.diff(br_drag.runs.means) < 0).all(), "the larger c, the faster"


@pytest.mark.thorough
def test_clients_with_more_steps_draw_fedavg_to_their_minima_and_not_fednova():
    """Objective inconsistency (Wang et al. 2020): both end where the formula says, FedNova near the common minimum."""
    losses = Quadratics.draw(6, spread=1.0, noise=0.0, start=1.0, per_client=1)
    runs = {name: inconsistency.METHODS[name]() for name in ("fedavg", "fednova")}
    runs = {
        name: inconsistency.run(method, losses, seeds=2, rounds=600, local_steps=(1, 20), steps_drawn="once")
        for name, method in runs.items()
    }
    steps = runs["fednova"].steps[0]
    assert len(set(steps)) > 3
    distance = {}
    for name, paths in runs.items():
        found, expected = paths.thetas[0, -1], inconsistency.limit(losses, steps, normalised=name == "fednova")
        np.testing.assert_allclose(found, expected, atol=1e-3)
        distance[name] = np.linalg.norm(found)
    assert distance["fedavg"] > 10 * distance["fednova"]


@pytest.mark.thorough
def test_clippedgossip_agrees_where_the_median_does_not():
    wide, narrow = (consensus.errors("clippedgossip", 0.1, bridge, rounds=50) for bridge in (0.267, 0.04))
    assert wide[0] == narrow[0] == 1e4
    assert (np.diff(wide) <= 0).all()
    assert wide[-1] < 1e-3 < 100 < narrow[-1], "the smaller the spectral gap the slower"
    np.testing.assert_array_equal(consensus.errors("median", 0.1, 0.267, rounds=50), 1e4)
