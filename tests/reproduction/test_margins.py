import math

import numpy as np
import pytest
from scipy import stats

from fedjax_drag.experiment.intervals import estimate
from reproduction.judging.margins import (
    FAILS,
    HOLDS,
    LEVEL,
    UNDECIDED,
    Interval,
    Prediction,
    Votes,
    across,
    chance,
    combined,
    holm,
    of_turns,
    predicted,
    widened,
)


def test_an_interval_is_students_t():
    mean, half = estimate(np.array([2.0, 4.0, 6.0]))
    assert mean == 4.0
    assert half == pytest.approx(4.302653 * 2 / 3**0.5), "Student's t with two degrees of freedom, from a table"
    part = across(np.array([0.02, 0.04, 0.06]), "points", at_least=1.0)
    assert (part.mean, part.low, part.high) == pytest.approx((4.0, 4 - 100 * half / 100, 4 + 100 * half / 100))


def test_ratios_have_the_interval_of_their_logarithm():
    logs = np.log([0.45, 0.5, 0.5 / 0.9])
    part = across(logs, "times", at_most=0.75)
    mean, half = estimate(logs)
    assert part.mean == pytest.approx(0.5)
    assert (part.low, part.high) == pytest.approx((math.exp(mean - half), math.exp(mean + half)))
    assert part.verdict == HOLDS
    assert part._replace(at_most=0.55).verdict == UNDECIDED


def test_a_factor_of_its_own_widens_the_interval_as_independent_errors_add_up():
    part = across(np.log([0.45, 0.5, 0.5 / 0.9]), "times", at_most=0.75)
    half = math.hypot(math.log(part.high / part.mean), 0.2)
    expected = (part.mean, part.mean * math.exp(-half), part.mean * math.exp(half))
    assert widened(part, 0.2)[:3] == pytest.approx(expected)
    assert widened(part, 0.0)[:3] == pytest.approx(part[:3])


@pytest.mark.parametrize(
    ("low", "high", "bounds", "verdict"),
    [
        (1.0, 3.0, {"at_least": 0.5}, HOLDS),
        (1.0, 3.0, {"at_least": 1.0}, HOLDS),
        (1.0, 3.0, {"at_least": 1.0, "strict": True}, UNDECIDED),
        (1.0, 3.0, {"at_least": 2.0}, UNDECIDED),
        (1.0, 3.0, {"at_least": 3.0}, UNDECIDED),
        (1.0, 3.0, {"at_least": 3.0, "strict": True}, FAILS),
        (1.0, 3.0, {"at_least": 3.5}, FAILS),
        (1.0, 3.0, {"at_least": 0.0, "at_most": 4.0}, HOLDS),
        (1.0, 3.0, {"at_least": 0.0, "at_most": 2.0}, UNDECIDED),
        (1.0, 3.0, {"at_least": -2.0, "at_most": 0.0}, FAILS),
        (2.0, 2.0, {"at_least": 2.0}, HOLDS),
        (2.0, 2.0, {"at_least": 2.0, "strict": True}, FAILS),
    ],
)
def test_the_side_of_the_whole_interval_decides(low, high, bounds, verdict):
    part = Interval((low + high) / 2, low, high, "points", 3, **bounds)
    assert part.verdict == verdict
    assert part._replace(repetitions=2).verdict == UNDECIDED, "fewer than three seeds decide nothing"


def test_equal_seeds_have_an_interval_of_width_zero_and_one_seed_has_none():
    part = across(np.array([0.01] * 3), "points", at_least=0.0)
    assert (part.low, part.high, part.verdict) == (1.0, 1.0, HOLDS)
    alone = across(np.array([0.01]), "points", at_least=0.0)
    assert math.isnan(alone.low)
    assert alone.verdict == UNDECIDED
    assert alone.as_row()["low"] is None
    assert str(alone) == "+1.0 points"


def test_turns_have_the_interval_of_their_median():
    ratios = [1.0] * 3 + [1.2] * 14 + [9.0] * 3  # binomial(20, 1/2): ranks 6 and 15
    part = of_turns(ratios, at_least=1.1)
    assert (part.mean, part.low, part.high, part.verdict) == (1.2, 1.2, 1.2, HOLDS)
    spread = of_turns(list(range(1, 21)))
    assert (spread.mean, spread.low, spread.high) == (10.5, 6.0, 15.0)


@pytest.mark.parametrize(
    ("yes", "count", "verdict"),
    [
        (5, 5, UNDECIDED),
        (6, 6, HOLDS),
        (0, 6, FAILS),
        (7, 8, UNDECIDED),
        (8, 9, HOLDS),
        (20, 30, UNDECIDED),
        (21, 30, HOLDS),
    ],
)
def test_votes_decide_by_the_interval_of_their_share(yes, count, verdict):
    """Of Clopper and Pearson: 6 of 6 is 0.541 to 1, 8 of 9 is 0.518 to 0.997, 20 of 30 is 0.472 to 0.827."""
    assert Votes(yes, count).verdict == verdict
    assert Votes(count - yes, count).verdict == {HOLDS: FAILS, FAILS: HOLDS}.get(verdict, verdict)


def test_a_claim_about_all_runs_is_contradicted_by_one():
    of_all = [Votes(yes, count, of_all=True).verdict for yes, count in ((3, 3), (2, 3), (0, 3), (2, 2))]
    assert of_all == [HOLDS, FAILS, FAILS, UNDECIDED]


@pytest.mark.parametrize(
    ("low", "high", "unit", "bounds", "verdict"),
    [
        (-0.3, 0.8, "points", {"at_least": 0.0}, LEVEL),
        (-1.0, 1.0, "points", {"at_least": 0.0}, LEVEL),
        (-0.3, 1.01, "points", {"at_least": 0.0}, UNDECIDED),
        (-1.01, 0.8, "points", {"at_least": 0.0}, UNDECIDED),
        (0.1, 0.8, "points", {"at_least": 0.0}, HOLDS),
        (-0.8, -0.1, "points", {"at_least": 0.0}, FAILS),
        (0.0, 0.0, "points", {"at_least": 0.0, "strict": True}, LEVEL),
        (1.0, 1.0, "times", {"at_most": 1.0, "strict": True}, LEVEL),
        (1.0, 1.0, "times", {"at_most": 1.0}, HOLDS),
        (0.97, 1.04, "times", {"at_most": 1.0}, LEVEL),
        (0.97, 1.051, "times", {"at_most": 1.0}, UNDECIDED),
        (0.95, 1.04, "times", {"at_most": 1.0}, UNDECIDED),
        (-0.3, 0.8, "points", {"at_least": 0.5}, UNDECIDED),
        (-0.3, 0.8, "points", {"at_least": -0.2, "at_most": 0.2}, UNDECIDED),
        (-0.3, 0.8, "points an evaluation", {"at_least": 0.0}, UNDECIDED),
    ],
)
def test_sides_between_which_nothing_matters_are_level(low, high, unit, bounds, verdict):
    """An order alone can be level, by at most a point or 5 %; a size that a paper names cannot."""
    part = Interval((low + high) / 2, low, high, unit, 3, **bounds)
    assert part.verdict == verdict
    assert part._replace(repetitions=2).verdict == UNDECIDED


def test_a_single_run_of_a_paper_is_beside_one_more_of_ours():
    leads = np.array([0.08, 0.11, 0.14])
    part = predicted(leads, "points", 13.4, at_least=True)
    half = stats.t.ppf(0.975, 2) * 3 * (1 + 1 / 3) ** 0.5
    assert (part.low, part.mean, part.high) == pytest.approx((11 - half, 11, 11 + half))
    assert part.verdict == HOLDS
    assert part._replace(theirs=27.0).verdict == FAILS
    assert part._replace(theirs=-9.0).verdict == HOLDS, "a larger lead than the paper's"
    assert predicted(leads[:2], "points", 13.4, at_least=True).verdict == UNDECIDED
    ratio = predicted(np.log([0.5, 0.6, 0.7]), "times", 0.43, at_least=False)
    assert ratio.mean == pytest.approx((0.5 * 0.6 * 0.7) ** (1 / 3))
    assert (ratio.verdict, ratio._replace(theirs=0.2).verdict, ratio._replace(theirs=0.9).verdict) == (
        HOLDS,
        FAILS,
        HOLDS,
    )
    assert ratio._replace(low=0.0).verdict == UNDECIDED, "how few rounds it may be is not known"
    assert ratio._replace(low=0.0, theirs=0.9).verdict == HOLDS
    never = Prediction(0.5, 0.2, math.inf, "times", 3, 0.6, at_least=True)
    assert (never.verdict, never._replace(theirs=0.4).verdict) == (UNDECIDED, HOLDS), "how many it may be is not known"
    assert Prediction(2.0, 0.0, 4.0, "points", 3, 1.0, at_least=False).verdict == HOLDS, "0 points are known"


def test_p_is_that_of_a_t_test():
    values = np.array([0.01, 0.02, 0.05, 0.03])
    expected = stats.ttest_1samp(100 * values, 1.0).pvalue
    assert across(values, "points", at_least=1.0).p == pytest.approx(expected)
    assert across(values, "points", at_least=1.0, at_most=9.0).p == pytest.approx(expected), "the nearest boundary"
    logs = np.log([0.5, 0.7, 0.6])
    ratio = across(logs, "times", at_most=1.0)
    assert ratio.p == pytest.approx(stats.ttest_1samp(logs, 0.0).pvalue)
    assert ratio._replace(low=0.0).p == pytest.approx(ratio.p), "of the end that is known"
    assert ratio._replace(at_least=0.0).p == ratio.p, "no ratio is near 0"
    turns = Interval(1.2, 1.1, 1.4, "times", 10, at_least=1.0, repeated="turns")
    assert turns.p == pytest.approx(2 * stats.norm.sf(np.log(1.2) / np.log(1.2 / 1.1) * stats.norm.ppf(0.975)))
    assert across(np.array([0.02] * 3), "points", at_least=1.0).p == 0.0
    assert across(np.array([0.01] * 3), "points", at_least=1.0).p == 1.0
    assert (Votes(6, 6).p, Votes(6, 6, of_all=True).p) == (pytest.approx(2 / 64), 0.0)


def test_the_p_of_what_is_level_is_that_of_two_one_sided_tests():
    values = np.array([0.2, -0.1, 0.3, 0.1])
    part = across(values / 100, "points", at_least=0.0, strict=True)
    assert part.verdict == LEVEL
    sides = [stats.ttest_1samp(values, bound, alternative=way).pvalue for bound, way in ((-1, "greater"), (1, "less"))]
    assert part.p == pytest.approx(2 * max(sides))
    assert chance((part,)) == part.p


def test_the_p_of_a_figure_is_that_of_one_more_run():
    leads = np.array([0.08, 0.11, 0.14])
    part = predicted(leads, "points", 27.0, at_least=True)
    t = (27 - 11) / (3 * (1 + 1 / 3) ** 0.5)
    assert part.p == pytest.approx(2 * stats.t.sf(t, 2))
    compatible = part._replace(theirs=13.4)
    assert compatible.p == 1.0
    lead = across(leads, "points", at_least=0.0)
    assert chance((lead, compatible)) == lead.p, "that it is compatible says nothing for the claim"
    assert chance((lead, part)) == pytest.approx(2 * part.p)


def test_the_p_of_several_parts():
    sure, likely = (Interval(2.0, low, 4.0 - low, "points", 5, at_least=0.0) for low in (1.9, 1.0))
    failing = sure._replace(at_least=3.0)
    assert chance((sure, likely)) == likely.p
    assert chance((likely, failing, likely)) == pytest.approx(3 * failing.p)
    assert chance((sure, likely._replace(at_least=2.0))) == 1.0, "undecided"


def test_holms_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.001]) == pytest.approx([0.5, 0.002])
    assert holm([]) == []


def test_one_part_that_does_not_hold_decides():
    assert combined([HOLDS, HOLDS]) == HOLDS
    assert combined([HOLDS, UNDECIDED]) == UNDECIDED
    assert combined([HOLDS, UNDECIDED, LEVEL, FAILS]) == FAILS
    assert combined([HOLDS, LEVEL]) == LEVEL
    assert combined([LEVEL, UNDECIDED]) == UNDECIDED
    assert combined([]) == UNDECIDED


def test_a_row_of_a_record_is_plain():
    row = Interval(1 / 3, 0.0, 1.0, "points", 3, at_least=0.5).as_row()
    assert row["mean"] == 0.333333
    assert (row["at_least"], row["at_most"], row["verdict"]) == (0.5, None, UNDECIDED)
    assert Votes(2, 3).as_row() == {
        "yes": 2,
        "unit": "votes",
        "repetitions": 3,
        "repeated": "seeds",
        "verdict": UNDECIDED,
    }
