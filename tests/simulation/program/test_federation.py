"""Malicious clients, and the server's root data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_drag as fd
from fedjax_drag.data.malicious import choose_malicious
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.program.federation import _Pools, choose_root, count_malicious
from fedjax_drag.simulation.settings import Settings


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
    ],
)
def test_impossible_numbers_of_malicious_clients_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        count_malicious(40, 10, **arguments)


def test_a_larger_fraction_includes_the_malicious_clients_of_a_smaller_one():
    assert (choose_malicious(40, 12, 0) <= choose_malicious(40, 24, 0)).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any), st.data())
def test_quotas_are_as_even_as_the_clients_allow(available, data):
    available = np.array(available)
    total = data.draw(st.integers(1, int(available.sum())))
    pools = _Pools(np.arange(available.sum()), available)
    quota = np.bincount(pools.owner[pools.take_evenly(total)], minlength=len(available))
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


def test_root_data_of_benign_clients_are_those_of_the_first_version(digits):
    malicious = choose_malicious(12, 4, seed=0)
    plain = [1272, 201, 197, 991, 1275, 443, 376, 186, 838, 1295, 703, 104, 249, 137, 677, 170]
    biased = [1376, 663, 164, 1144, 1295, 687, 170, 68, 1272, 197, 1275, 376, 838, 703, 249, 677]
    assert choose_root(digits, malicious, 16).tolist() == plain
    assert choose_root(digits, malicious, 16, 0.5).tolist() == biased


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


def test_too_large_a_bias_of_root_data_is_refused(digits):
    with pytest.raises(ValueError, match=r"root_bias=1\.0: needs 1000 examples of class 0; the benign clients hold"):
        choose_root(digits, np.zeros(12, bool), 1000, 1.0)


def test_default_root_size(digits):
    benign = np.zeros(12, bool)
    assert len(choose_root(digits, benign, None)) == int(digits.counts.sum()) // 10


@pytest.fixture(scope="module")
def of_one_class():
    """Ten clients, each with all examples of one of the ten classes."""
    return fd.data.partition.label_affinity(fd.data.load("digits"), num_clients=10, q=1.0)


def classes(data, root):
    return set(np.asarray(data.train.y)[root].tolist())


def test_root_data_from_all_clients_have_the_classes_that_benign_ones_lack(of_one_class):
    malicious = choose_malicious(10, 4, seed=0)
    lacking = set(np.flatnonzero(malicious).tolist())
    assert classes(of_one_class, choose_root(of_one_class, malicious, 300)) == set(range(10)) - lacking
    root = choose_root(of_one_class, malicious, 300, source="all")
    assert len(root) == len(set(root)) == 300
    assert root.dtype == np.int32
    assert classes(of_one_class, root) == set(range(10))


def test_root_data_from_all_clients_are_a_uniform_draw():
    """Every example is drawn equally often, whatever the size of its client, within the spread of chance."""
    data = fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=8, beta=0.1, seed=1)
    size, draws, times = int(data.counts.sum()), 500, np.zeros(len(data.train.y))
    for seed in range(draws):
        times[choose_root(data, np.zeros(8, bool), size // 5, source="all", seed=seed)] += 1
    spread = np.sqrt(draws * 0.2 * 0.8)
    for row, count in zip(data.rows, data.counts, strict=True):
        assert abs(times[row[:count]].mean() - draws / 5) < 5 * spread / np.sqrt(count)
    assert times.std() == pytest.approx(spread, rel=0.1)


def test_root_data_from_all_clients_depend_on_the_seed_only(of_one_class):
    few, many = choose_malicious(10, 1, 0), choose_malicious(10, 6, 0)
    root = choose_root(of_one_class, few, 60, source="all", seed=3)
    np.testing.assert_array_equal(root, choose_root(of_one_class, many, 60, source="all", seed=3))
    np.testing.assert_array_equal(root, choose_root(of_one_class, many, 90, source="all", seed=3)[:60])
    assert set(root) != set(choose_root(of_one_class, few, 60, source="all", seed=4))


def test_biased_root_data_from_all_clients(of_one_class):
    """Even where only a malicious client has examples of class 0."""
    malicious = np.arange(10) == 0
    with pytest.raises(ValueError, match=r"root_bias=0\.5: needs 30 examples of class 0; the benign clients hold 0$"):
        choose_root(of_one_class, malicious, 60, 0.5)
    root = choose_root(of_one_class, malicious, 240, 0.5, "all")
    assert len(root) == len(set(root)) == 240
    assert (of_one_class.train.y[root[:120]] == 0).all()
    assert classes(of_one_class, root[120:]) >= set(range(1, 10))
    with pytest.raises(ValueError, match=r"root_bias=1\.0: needs 1000 examples of class 0; the clients hold"):
        choose_root(of_one_class, malicious, 1000, 1.0, "all")


@pytest.mark.parametrize("bias", [0.0, 0.1, 0.75, 1.0])
def test_biased_root_data_have_exactly_that_share_of_one_class(bias):
    """The rest is drawn uniformly from the other classes, by the seed alone."""
    data = fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=8, beta=0.5, seed=1)
    root = choose_root(data, np.zeros(8, bool), 80, bias, "biased", seed=3)
    assert len(root) == len(set(root)) == 80
    labels = np.asarray(data.train.y)[root]
    assert (labels == 0).sum() == round(80 * bias)
    if bias <= 0.1:
        assert set(labels) >= set(range(1, 10))
    if bias == 0:
        few, many = choose_malicious(8, 1, 0), choose_malicious(8, 7, 0)
        np.testing.assert_array_equal(root, choose_root(data, few, 80, bias, "biased", seed=3))
        np.testing.assert_array_equal(root, choose_root(data, many, 80, bias, "biased", seed=3))
        total = int(data.counts.sum())
        message = rf"root_bias=0\.0: needs {total} examples of other classes; the clients hold"
        with pytest.raises(ValueError, match=message):
            choose_root(data, few, total, bias, "biased")


def test_root_data_from_all_clients_without_a_benign_one(of_one_class):
    assert len(choose_root(of_one_class, np.ones(10, bool), 50, source="all")) == 50
    with pytest.raises(ValueError, match=r"root_size=100000: must be an integer in \[1, "):
        choose_root(of_one_class, np.ones(10, bool), 100_000, source="all")
    assert len(choose_root(of_one_class, np.ones(10, bool), None, source="all")) == of_one_class.counts.sum() // 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"root_source": "al"}, r"root_source='al': must be one of benign, all, biased; did you mean 'all'\?"),
        ({"root_bias": 1.5}, r"root_bias=1.5: must be in \[0, 1\]"),
        ({"byzantine_fraction": -0.1}, "byzantine_fraction=-0.1: must be in"),
        ({"byzantine_of": "round"}, "byzantine_of='round': must be one of federation, cohort"),
    ],
)
def test_unknown_malicious_clients_and_root_data_are_refused(refused, fedavg, changes, message):
    refused(message, fedavg, **changes)


def test_root_source_is_a_setting(settings, of_one_class):
    def root(**changes):
        drag = fd.algorithms.from_aggregator(fd.aggregators.br_drag())
        base = settings(data=of_one_class, num_byzantine=4, root_size=200) | changes
        return federate(Settings(algorithm=drag, **base)).root_row

    usual = root()
    np.testing.assert_array_equal(usual, root(root_source="benign"))
    np.testing.assert_array_equal(usual, choose_root(of_one_class, choose_malicious(10, 4, 0), 200))
    assert len(classes(of_one_class, usual)) == 6
    np.testing.assert_array_equal(
        root(root_source="all", seed=5), choose_root(of_one_class, np.zeros(10, bool), 200, source="all", seed=5)
    )
    assert len(classes(of_one_class, root(root_source="all"))) == 10
