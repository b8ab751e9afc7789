import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.data import from_arrays, load, partition

PARTITIONS = {
    "iid": lambda fed, num_clients, seed: partition.iid(fed, num_clients, seed=seed),
    "dirichlet": lambda fed, num_clients, seed: partition.dirichlet(fed, num_clients, beta=1.0, seed=seed),
    "label_affinity": lambda fed, num_clients, seed: partition.label_affinity(fed, num_clients, q=0.5, seed=seed),
    # With smaller fractions a client's labels may all be without examples, which is refused.
    "label_groups": lambda fed, num_clients, seed: partition.label_groups(fed, num_clients, (1.0,), seed=seed),
}


def labelled(labels, num_classes=None):
    """A data set in which only the labels matter."""
    x = np.zeros((len(labels), 1), np.float32)
    return from_arrays(x, labels, x, labels, num_classes=num_classes, mean=(0.0,), std=(1.0,))


def clients(fed):
    return [row[:count] for row, count in zip(fed.rows, fed.counts, strict=True)]


def assert_every_example_once(fed):
    assert fed.rows.dtype == fed.counts.dtype == np.int32
    np.testing.assert_array_equal(np.sort(np.concatenate(clients(fed))), np.arange(len(fed.train.y)))
    assert fed.rows.shape == (fed.num_clients, fed.counts.max())
    padding = np.arange(fed.rows.shape[1]) >= fed.counts[:, None]
    assert not fed.rows[padding].any()


@st.composite
def federations(draw):
    num_classes = draw(st.integers(1, 8))
    labels = draw(st.lists(st.integers(0, num_classes - 1), min_size=60, max_size=200))
    return labelled(np.array(labels), num_classes), draw(st.integers(1, 6)), draw(st.integers(0, 2**32))


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=federations())
@settings(max_examples=40, deadline=None)
def test_every_example_belongs_to_exactly_one_client(kind, data):
    fed, num_clients, seed = data
    split = PARTITIONS[kind](fed, num_clients, seed)
    assert split.num_clients == num_clients
    assert_every_example_once(split)
    again = PARTITIONS[kind](split, num_clients, seed)  # replaces the partition that is there
    np.testing.assert_array_equal(split.rows, again.rows)
    np.testing.assert_array_equal(split.counts, again.counts)
    assert split.partition == again.partition
    assert split.train is fed.train


@given(num_examples=st.integers(1, 300), data=st.data())
@settings(deadline=None)
def test_iid_is_even(num_examples, data):
    num_clients = data.draw(st.integers(1, num_examples))
    split = partition.iid(labelled(np.zeros(num_examples, int)), num_clients, seed=1)
    assert split.counts.max() - split.counts.min() <= 1
    assert_every_example_once(split)


@given(beta=st.floats(0.05, 100), num_clients=st.integers(1, 20), min_size=st.integers(1, 3), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_dirichlet_gives_everybody_min_size(beta, num_clients, min_size, seed):
    fed = labelled(np.arange(2000) % 10)
    split = partition.dirichlet(fed, num_clients, beta, seed=seed, min_size=min_size)
    assert split.counts.min() >= min_size
    assert_every_example_once(split)


@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0])
def test_dirichlet_shares_have_the_moments_of_the_distribution(beta):
    """One share of Dir(beta 1_M) has mean 1/M and variance (M - 1) / (M^2 (M beta + 1))."""
    num_clients, num_classes, per_class = 5, 200, 500
    fed = labelled(np.arange(num_classes * per_class) % num_classes)
    shares = partition.dirichlet(fed, num_clients, beta, seed=3).skew_report().counts / per_class
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * beta + 1))
    np.testing.assert_allclose(shares.mean(), 1 / num_clients, rtol=1e-9)
    np.testing.assert_allclose(shares.mean(axis=1), 1 / num_clients, atol=5 * np.sqrt(variance / num_classes))
    np.testing.assert_allclose(((shares - 1 / num_clients) ** 2).mean(), variance, rtol=0.15)


@pytest.mark.parametrize("beta", [1e-6, 1e6])
def test_dirichlet_at_the_ends_of_its_range(beta):
    split = partition.dirichlet(labelled(np.arange(4000) % 200), 4, beta)
    assert_every_example_once(split)
    counts = split.skew_report().counts
    if beta < 1:
        assert ((counts > 0).sum(axis=0) == 1).all()  # each class lies with one client
    else:
        np.testing.assert_array_equal(counts, 5)


def test_dirichlet_succeeds_where_it_is_used():
    """40 clients with beta = 0.1: on data as large as MNIST with ten examples each, and on the digits."""
    large, small = labelled(np.arange(60_000) % 10), load("digits")
    start = time.perf_counter()
    for seed in range(20):
        assert partition.dirichlet(large, 40, 0.1, seed=seed, min_size=10).counts.min() >= 10
        assert partition.dirichlet(small, 40, 0.1, seed=seed).counts.min() >= 1
    assert time.perf_counter() - start < 10


def test_impossible_dirichlet_is_one_clear_line():
    fed = labelled(np.arange(500) % 10)
    with pytest.raises(ValueError, match=r"num_clients=501: .* 500 training examples; must be at most 500") as error:
        partition.dirichlet(fed, 501, 0.1)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"num_clients=40: .*20 examples each.* at most 25"):
        partition.dirichlet(fed, 40, 0.1, min_size=20)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"none of 10000 draws .* try a larger beta") as error:
        partition.dirichlet(fed, 100, 0.001)
    assert "\n" not in str(error.value)
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("num_clients", [2, 3, 7, 10])
def test_label_affinity_of_one_gives_only_own_labels(num_clients):
    fed = labelled(np.arange(1000) % 10)
    split = partition.label_affinity(fed, num_clients, 1.0)
    for client, indices in enumerate(clients(split)):
        np.testing.assert_array_equal(np.unique(fed.train.y[indices] % num_clients), [client])


def test_label_affinity_groups_clients_when_there_are_more_than_classes():
    fed = labelled(np.arange(8000) % 4)
    split = partition.label_affinity(fed, 10, 1.0)  # groups 0 4 8, 1 5 9, 2 6, 3 7
    for client, indices in enumerate(clients(split)):
        np.testing.assert_array_equal(np.unique(fed.train.y[indices]), [client % 4])
    expected = np.array([2000 / 3, 2000 / 3, 1000, 1000] * 3)[:10]
    np.testing.assert_allclose(split.counts, expected, atol=5 * np.sqrt(1000))


@pytest.mark.parametrize(("num_clients", "q"), [(4, 0.25), (4, 0.7), (4, 0.0), (2, 0.9), (10, 0.25), (10, 0.6)])
def test_label_affinity_has_its_probabilities(num_clients, q):
    per_class, num_classes = 5000, 4
    counts = (
        partition.label_affinity(labelled(np.arange(20_000) % num_classes), num_clients, q, seed=5).skew_report().counts
    )
    num_groups = min(num_clients, num_classes)
    for label in range(num_classes):
        for client in range(num_clients):
            members = sum(m % num_groups == client % num_groups for m in range(num_clients))
            to_group = q if client % num_groups == label % num_groups else (1 - q) / (num_groups - 1)
            assert abs(counts[client, label] / per_class - to_group / members) < 5 * np.sqrt(0.25 / per_class)


def test_label_affinity_that_leaves_a_client_with_nothing_is_refused():
    fed = labelled(np.zeros(50, int), num_classes=2)
    with pytest.raises(ValueError, match=r"label_affinity\(q=1.0, seed=0\): none of 1000 draws"):
        partition.label_affinity(fed, 2, 1.0)


@st.composite
def grouped(draw):
    """Classes, clients and fractions that cover the classes; each class has an example for every client."""
    num_classes = draw(st.integers(1, 12))
    fractions = tuple(draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4)))
    # A client holds a class at least, so that as many clients as classes in every group are enough.
    num_clients = len(fractions) * num_classes + draw(st.integers(0, 5))
    return num_classes, num_clients, fractions, draw(st.integers(0, 2**32))


@given(case=grouped())
@settings(max_examples=40, deadline=None)
def test_label_groups_gives_each_group_its_number_of_labels(case):
    num_classes, num_clients, fractions, seed = case
    fed = labelled(np.arange(num_classes * (num_clients + 3)) % num_classes)
    split = partition.label_groups(fed, num_clients, fractions, seed)
    assert_every_example_once(split)
    counts = split.skew_report().counts
    assert counts.shape == (num_clients, num_classes)
    labels = (counts > 0).sum(axis=1)
    groups = np.array_split(labels, group_starts(num_clients, len(fractions)))
    for group, fraction in zip(groups, fractions, strict=True):
        assert (group == max(1, round(fraction * num_classes))).all()
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    holders = (counts > 0).sum(axis=0)
    assert holders.min() >= 1
    assert holders.max() - holders.min() <= 1
    for share, held in zip(counts.T, (counts > 0).T, strict=True):
        assert share[held].max() - share[held].min() <= 1
    np.testing.assert_array_equal(partition.label_groups(fed, num_clients, fractions, seed).rows, split.rows)


def group_starts(num_clients, num_groups):
    """Where the second and later groups begin: client m belongs to group ``floor(m G / M)``."""
    return [-(-g * num_clients // num_groups) for g in range(1, num_groups)]


def test_label_groups_as_in_its_table():
    """Tenths of ten classes: a third of the clients sees one, a third two, the last five."""
    fed = labelled(np.arange(3000) % 10)
    split = partition.label_groups(fed, 20)
    labels = (split.skew_report().counts > 0).sum(axis=1)
    np.testing.assert_array_equal(labels, [1] * 7 + [2] * 7 + [5] * 6)
    assert split.partition == "label_groups(fractions=(0.1, 0.2, 0.5), seed=0)"
    other = partition.label_groups(fed, 20, seed=1)
    assert not np.array_equal(other.skew_report().counts > 0, split.skew_report().counts > 0)


def test_label_groups_that_cannot_be_are_refused():
    fed = labelled(np.arange(100) % 10)
    assert partition.label_groups(fed, 10, (0.1,)).counts.tolist() == [10] * 10
    for build, message in (
        (lambda: partition.label_groups(fed, 9, (0.1,)), r"num_clients=9: .* hold 9 labels, .* the 10 classes"),
        (lambda: partition.label_groups(labelled([0] * 30 + [1]), 6, (0.5,)), "num_clients=6: some would have no"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            build()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", PARTITIONS)
def test_beginnings_of_rows_are_random_subsets(kind):
    """Neither the order of the file nor the class tells where in its row an example lies."""
    fed = labelled(np.repeat(np.arange(4), 2500))
    split = PARTITIONS[kind](fed, 2, 7)
    for indices in clients(split):
        place = np.arange(len(indices))
        assert abs(np.corrcoef(place, indices)[0, 1]) < 5 / np.sqrt(len(indices))
        assert abs(np.corrcoef(place, fed.train.y[indices] == fed.train.y[indices[0]])[0, 1]) < 5 / np.sqrt(
            len(indices)
        )


@pytest.mark.parametrize("kind", PARTITIONS)
def test_seeds_differ(kind):
    fed = labelled(np.arange(1000) % 10)
    one, other = (PARTITIONS[kind](fed, 5, seed) for seed in (0, 1))
    assert not np.array_equal(clients(one)[0], clients(other)[0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda fed: partition.iid(fed, 0), "num_clients=0"),
        (lambda fed: partition.iid(fed, 2.0), "num_clients=2.0"),
        (lambda fed: partition.iid(fed, 101), "num_clients=101"),
        (lambda fed: partition.iid(fed, 2, seed=-1), "seed=-1"),
        (lambda fed: partition.dirichlet(fed, 2, 0.0), "beta=0.0"),
        (lambda fed: partition.dirichlet(fed, 2, float("nan")), "beta=nan"),
        (lambda fed: partition.dirichlet(fed, 2, float("inf")), "beta=inf"),
        (lambda fed: partition.dirichlet(fed, 2, "0.1"), "beta='0.1'"),
        (lambda fed: partition.dirichlet(fed, 2, 0.1, min_size=0), "min_size=0"),
        (lambda fed: partition.dirichlet(fed, 2, 0.1, max_tries=0), "max_tries=0"),
        (lambda fed: partition.label_affinity(fed, 2, 1.1), "q=1.1"),
        (lambda fed: partition.label_affinity(fed, 2, -0.1), "q=-0.1"),
        (lambda fed: partition.label_groups(fed, 4, (0.5, 0.0)), r"fractions=0.0: must be in \(0, 1\]"),
        (lambda fed: partition.label_groups(fed, 4, (1.1,)), "fractions=1.1"),
        (lambda fed: partition.label_groups(fed, 4, (float("nan"),)), "fractions=nan"),
        (lambda fed: partition.label_groups(fed, 2), "num_clients=2"),
        (lambda fed: partition.label_groups(fed, 4, seed=-1), "seed=-1"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message) as error:
        build(labelled(np.arange(100) % 10))
    assert "\n" not in str(error.value)


def test_partition_says_what_it_was():
    fed = labelled(np.arange(100) % 10)
    assert partition.dirichlet(fed, 3, 0.5, seed=2).partition == "dirichlet(beta=0.5, seed=2)"
    assert partition.dirichlet(fed, 3, 0.5, min_size=4).partition == "dirichlet(beta=0.5, seed=0, min_size=4)"
    described = partition.label_groups(fed, 4, [0.25, 0.5], seed=3).partition
    assert described == "label_groups(fractions=(0.25, 0.5), seed=3)"
    assert replace(partition.iid(fed, 3), name="x").partition == "iid(seed=0)"
