"""The number of seeds that would decide, beside intervals of made-up seeds of the same mean and spread."""

import math

import numpy as np
import pytest

from reproduction.judging.margins import FAILS, HOLDS, LEVEL, UNDECIDED, Votes, across, predicted
from reproduction.judging.more_seeds import MOST, deciding


def like(mean, spread, number):
    """Values of this mean and standard deviation."""
    values = np.linspace(-1, 1, number)
    return mean + spread * values / values.std(ddof=1)


@pytest.mark.parametrize(
    ("mean", "spread", "unit", "bounds", "then"),
    [
        (0.01, 0.02, "points", {"at_least": 0.0}, HOLDS),
        (-0.01, 0.02, "points", {"at_least": 0.0}, FAILS),
        (0.001, 0.02, "points", {"at_least": 0.0}, LEVEL),
        (math.log(1.2), 0.3, "times", {"at_most": 1.0}, FAILS),
        (math.log(0.8), 0.3, "times", {"at_most": 1.0}, HOLDS),
    ],
)
def test_so_many_decide_and_one_fewer_does_not(mean, spread, unit, bounds, then):
    part = across(like(mean, spread, 4), unit, **bounds)
    assert part.verdict == UNDECIDED
    number = int(deciding([part]))
    assert 4 < number < MOST
    assert across(like(mean, spread, number), unit, **bounds).verdict == then
    assert across(like(mean, spread, number - 1), unit, **bounds).verdict == UNDECIDED


def test_votes_that_stay_as_they_are():
    assert deciding([Votes(5, 5)]) == 6
    assert deciding([Votes(0, 3)]) == 6
    number = int(deciding([Votes(4, 5)]))
    assert Votes(round(0.8 * number), number).verdict == HOLDS
    assert Votes(round(0.8 * (number - 1)), number - 1).verdict == UNDECIDED
    assert deciding([Votes(2, 4)]) == MOST


def test_one_part_that_comes_to_fail_is_enough_and_else_all_must_hold():
    slow, fast = (across(like(0.01, spread, 4), "points", at_least=0.0) for spread in (0.03, 0.015))
    against = across(like(-0.01, 0.02, 4), "points", at_least=0.0)
    assert deciding([slow, fast]) == deciding([slow]) > deciding([fast])
    assert deciding([slow, fast, against]) == deciding([against])
    assert deciding([across(like(0.2, 0.01, 4), "points", at_least=0.0)]) == 0, "nothing is undecided"


def test_what_never_reaches_the_accuracy_needs_more_rounds():
    assert deciding([across(np.log([0.5, 0.9, 1.1]), "times", at_most=1.0)._replace(low=0.0)]) == math.inf
    never = predicted(np.log([0.5, 0.6, 0.7]), "times", 0.4, at_least=False)._replace(low=0.0)
    assert deciding([never]) == math.inf
