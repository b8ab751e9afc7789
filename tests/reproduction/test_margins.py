import math

import numpy as np
import pytest

from fedjax_drag.experiment.intervals import estimate
from reproduction.judging.margins import FAILS, HOLDS, UNDECIDED, Interval, Votes, across, combined, of_turns


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
    ("yes", "count", "verdict"), [(3, 3, HOLDS), (0, 3, FAILS), (2, 3, UNDECIDED), (2, 2, UNDECIDED)]
)
def test_votes_decide_if_they_are_unanimous(yes, count, verdict):
    assert Votes(yes, count).verdict == verdict


def test_one_part_that_does_not_hold_decides():
    assert combined([HOLDS, HOLDS]) == HOLDS
    assert combined([HOLDS, UNDECIDED]) == UNDECIDED
    assert combined([HOLDS, UNDECIDED, FAILS]) == FAILS


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
