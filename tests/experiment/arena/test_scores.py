"""Intervals against SciPy's own, ranks on cases whose answer is plain."""

import numpy as np
import pytest
from scipy import stats

from fedjax_drag.experiment.arena.scores import score, worst_by_seed
from fedjax_drag.experiment.intervals import estimate


@pytest.mark.parametrize("number", [2, 3, 8])
def test_the_interval_is_that_of_a_t_test(number):
    values = np.random.default_rng(number).normal(0.7, 0.1, number)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = estimate(values)
    np.testing.assert_allclose([found.mean - found.half, found.mean + found.half], [low, high], rtol=1e-10)


def test_of_one_seed_there_is_no_interval():
    found = estimate(np.array([0.5]))
    assert found.mean == 0.5
    assert np.isnan(found.half)
    assert str(found) == "50.0"


def test_the_worst_case_is_that_of_each_task_and_seed():
    accuracy = np.array([[[0.9, 0.8], [0.5, 0.7], [0.6, 0.4]], [[1.0, 1.0], [0.9, 0.9], [1.0, 0.2]]])
    np.testing.assert_allclose(worst_by_seed(accuracy), [(0.5 + 0.9) / 2, (0.4 + 0.2) / 2])


def entry(*worst):
    """One task; without an attack 0.9, with one these accuracies by seed."""
    return np.array([[[0.9] * len(worst), worst]])


def test_ranks_tie_where_the_paired_difference_may_be_zero():
    scores = score(
        {
            "low": entry(0.1, 0.11, 0.12),
            "first": entry(0.7, 0.5, 0.6),
            "second": entry(0.69, 0.52, 0.58),
            "always below the first": entry(0.65, 0.46, 0.55),
        }
    )
    assert {label: one.rank for label, one in scores.items()} == {
        "first": 1,
        "second": 1,
        "always below the first": 3,
        "low": 4,
    }
    assert list(scores) == ["first", "second", "always below the first", "low"]
    assert [one.ranks for one in scores.values()] == ["1\N{EN DASH}2", "1\N{EN DASH}2", "3", "4"]


def test_without_several_seeds_all_tie():
    assert {one.rank for one in score({"a": entry(0.1), "b": entry(0.9)}).values()} == {1}
