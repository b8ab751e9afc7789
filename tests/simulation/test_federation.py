"""Who is malicious, and where the root data come from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.simulation.federation import _even_quotas, choose_malicious, choose_root, count_malicious


@pytest.mark.parametrize(("fraction", "number"), [(0.0, 0), (0.3, 12), (0.6, 24), (1.0, 40)])
def test_number_of_malicious_clients(fraction, number):
    assert count_malicious(40, 10, fraction) == count_malicious(99, 40, fraction, of="cohort") == number
    assert count_malicious(40, 10, number=number) == number
    malicious = choose_malicious(40, number, seed=5)
    assert malicious.sum() == number
    assert np.array_equal(malicious, choose_malicious(40, number, seed=5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number": 41}, r"num_byzantine=41: must be an integer in \[0, 40\]"),
        ({"number": 11, "of": "cohort"}, r"num_byzantine=11: must be an integer in \[0, 10\]"),
        ({"number": 0.5}, r"num_byzantine=0.5: must be an integer"),
        ({"number": 3, "fraction": 0.5}, "num_byzantine=3, byzantine_fraction=0.5: must be one of the two"),
        ({"fraction": -0.1}, "byzantine_fraction=-0.1: must be in"),
        ({"of": "round"}, "byzantine_of='round': must be one of federation, cohort"),
    ],
)
def test_numbers_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        count_malicious(40, 10, **arguments)


def test_larger_fractions_add_to_the_smaller():
    assert (choose_malicious(40, 12, 0) <= choose_malicious(40, 24, 0)).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any), st.data())
def test_quotas_are_as_even_as_the_clients_allow(available, data):
    available = np.array(available)
    total = data.draw(st.integers(1, int(available.sum())))
    quota = _even_quotas(available, total)
    assert quota.sum() == total
    assert (quota >= 0).all()
    assert (quota <= available).all()
    # Whoever gives less than the largest gift minus one gives all it has.
    assert all(q == a for q, a in zip(quota, available, strict=True) if q < quota.max() - 1)


def test_root_data_are_benign_distinct_and_even(digits):
    malicious = choose_malicious(12, 4, seed=0)
    root = choose_root(digits, malicious, 60)
    assert len(root) == len(set(root)) == 60
    owner = {index: m for m in range(12) for index in digits.rows[m][: digits.counts[m]]}
    gifts = np.bincount([owner[index] for index in root], minlength=12)
    assert (gifts[malicious] == 0).all()
    short = digits.counts < gifts.max() - 1
    assert (gifts[~malicious & ~short] >= gifts.max() - 1).all()


@pytest.mark.parametrize("bias", [0.5, 1.0])
def test_a_biased_root_set_has_more_of_one_class(digits, bias):
    malicious = choose_malicious(12, 4, seed=0)
    root = choose_root(digits, malicious, 60, bias)
    assert len(root) == len(set(root)) == 60
    of_class = digits.train.y[root] == 0
    assert of_class[: round(60 * bias)].all()
    owners = [m for index in root for m in range(12) if index in digits.rows[m][: digits.counts[m]]]
    assert not malicious[owners].any()
    if bias < 1:
        assert not of_class.all()


def test_a_biased_root_set_that_cannot_be_had(digits):
    with pytest.raises(ValueError, match=r"root_bias=1\.0: needs 1000 examples of class 0; the benign clients hold"):
        choose_root(digits, np.zeros(12, bool), 1000, 1.0)


def test_default_root_size(digits):
    benign = np.zeros(12, bool)
    assert len(choose_root(digits, benign, None)) == int(digits.counts.sum()) // 10
