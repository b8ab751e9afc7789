import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.data import from_arrays, load, partition
from fedjax_drag.data.malicious import choose_malicious
from fedjax_drag.data.partition import _quantity_skew

PARTITIONS = {
    "iid": partition.iid,
    "dirichlet": partial(partition.dirichlet, beta=1.0),
    "dirichlet-balanced": partial(partition.dirichlet, beta=1.0, balanced=True),
    "dirichlet-over-labels": partial(partition.dirichlet, beta=0.3, over="labels"),
    "label_affinity": partial(partition.label_affinity, q=0.5),
    # With smaller fractions a client's labels may all be without examples, which is refused.
    "label_groups": partial(partition.label_groups, fractions=(1.0,)),
    "label_groups-equal": partial(partition.label_groups, fractions=(1.0,), sizes="equal"),
    "shards": partition.shards,
    "gamma_similarity": partial(partition.gamma_similarity, gamma=0.5),
    "quantity_skew": partial(partition.quantity_skew, sigma=1.0),
    "quantity_skew-power": partial(partition.quantity_skew, power=2.0),
    "quantity_skew-beta": partial(partition.quantity_skew, beta=0.5),
    "by_quantile": partition.by_quantile,
    "dirichlet_quantity": partial(partition.dirichlet_quantity, beta=0.3, sigma=1.0),
}
EVEN = {"iid": 1, "dirichlet-over-labels": 1, "shards": 2, "gamma_similarity": 1, "by_quantile": 1}
"""By how much sizes may differ."""


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
@settings(max_examples=15, deadline=None)
def test_every_example_belongs_to_exactly_one_client(kind, data):
    fed, num_clients, seed = data
    split = PARTITIONS[kind](fed, num_clients, seed=seed)
    assert split.num_clients == num_clients
    assert_every_example_once(split)
    assert np.ptp(split.counts) <= EVEN.get(kind, np.inf)
    again = PARTITIONS[kind](split, num_clients, seed=seed)  # replaces the partition that is there
    np.testing.assert_array_equal(split.rows, again.rows)
    np.testing.assert_array_equal(split.counts, again.counts)
    assert split.partition == again.partition
    assert split.train is fed.train


@given(beta=st.floats(0.05, 100), num_clients=st.integers(1, 20), min_size=st.integers(1, 3), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_dirichlet_gives_every_client_min_size(beta, num_clients, min_size, seed):
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


@pytest.mark.thorough
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


def shares_of_each_class(labels, num_clients, beta, rng, balanced):
    """Yurochkin et al.'s scheme, as NIID-Bench balances it: drawn for all clients, set to 0, scaled. ``[C, M]``."""
    per_class = np.bincount(labels)
    while True:
        counts = np.zeros((len(per_class), num_clients), int)
        for label, available in enumerate(per_class):
            share = rng.dirichlet(np.full(num_clients, beta))
            if balanced:
                share = share * (counts.sum(0) < len(labels) / num_clients)
                share = share / share.sum()
            cuts = np.rint(np.minimum(np.cumsum(share), 1) * available)[:-1]
            counts[label] = np.diff(cuts, prepend=0, append=available)
        if counts.sum(0).min() >= 1:
            return counts


@pytest.mark.parametrize("seed", range(3))
def test_dirichlet_is_not_balanced_unless_asked_for(seed):
    """To the last example, with the draws of NumPy's generator."""
    labels = np.arange(2000) % 10
    expected = shares_of_each_class(labels, 20, 0.1, np.random.default_rng(seed), balanced=False)
    counts = partition.dirichlet(labelled(labels), 20, 0.1, seed=seed).skew_report().counts
    np.testing.assert_array_equal(counts, expected.T)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_balanced_dirichlet_has_the_sizes_of_the_reference(beta):
    """6,000 examples, 20 clients: for beta = 0.1 a standard deviation of 175, of 240 without it."""
    labels, seeds = np.arange(6000) % 10, 60
    fed, rng = labelled(labels), np.random.default_rng(0)
    reference = [shares_of_each_class(labels, 20, beta, rng, balanced=True).sum(0).std() for _ in range(seeds)]
    plain, balanced = (
        [partition.dirichlet(fed, 20, beta, seed=seed, balanced=way).counts.std() for seed in range(seeds)]
        for way in (False, True)
    )
    error = np.sqrt((np.var(reference) + np.var(balanced)) / seeds)
    assert abs(np.mean(balanced) - np.mean(reference)) < 4 * error
    assert 0.6 < np.mean(balanced) / np.mean(plain) < 0.85


@pytest.mark.parametrize("beta", [1e-6, 0.1, 1e6])
def test_balanced_dirichlet_gives_nothing_to_a_client_with_its_even_share(beta):
    labels = np.repeat(np.arange(30), [0, 40, 5, *range(27)])  # some absent, some rare
    split = partition.dirichlet(labelled(labels, 30), 6, beta, seed=1, balanced=True)
    assert_every_example_once(split)
    counts = split.skew_report().counts
    before = np.cumsum(counts, axis=1) - counts
    assert (before[counts > 0] < len(labels) / 6).all()


def test_balanced_dirichlet_gives_nothing_beyond_an_even_share_that_is_met_exactly():
    """Four classes of two, each of which goes to one client."""
    fed = labelled(np.repeat(np.arange(4), 2))
    for seed in range(20):
        np.testing.assert_array_equal(partition.dirichlet(fed, 2, 1e-6, seed=seed, balanced=True).counts, [4, 4])


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


@given(num_examples=st.integers(1, 300), per_client=st.integers(1, 5), data=st.data())
@settings(max_examples=40, deadline=None)
def test_shards_are_even_runs_of_the_sorted_labels(num_examples, per_client, data):
    num_clients = data.draw(st.integers(1, max(1, num_examples // per_client)))
    per_client = min(per_client, num_examples)
    labels = np.array(data.draw(st.lists(st.integers(0, 9), min_size=num_examples, max_size=num_examples)))
    split = partition.shards(labelled(labels, 10), num_clients, per_client, seed=num_examples)
    assert_every_example_once(split)
    assert split.counts.max() - split.counts.min() <= per_client
    counts = split.skew_report().counts
    # Joined in some order, the shards are the sorted labels: at most one label goes on from a shard to the next.
    assert (counts > 0).sum() <= np.unique(labels).size + num_clients * per_client


def test_two_shards_each_as_in_the_first_paper():
    """60,000 examples of ten classes, 200 shards of 300, two for each of 100 clients: at most two digits each."""
    split = partition.shards(labelled(np.arange(60_000) % 10), 100)
    assert set(split.counts) == {600}
    counts = split.skew_report().counts
    assert set(counts.ravel()) <= {0, 300, 600}
    assert set((counts > 0).sum(axis=1)) == {1, 2}


def test_shards_that_are_not_shuffled_lie_one_after_the_other():
    fed = labelled(np.arange(120) % 4)
    split, shuffled = partition.shards(fed, 5, 3, shuffled=False), partition.shards(fed, 5, 3)
    np.testing.assert_array_equal(np.sort(split.rows), np.sort(shuffled.rows))
    labels = fed.train.y[split.rows].reshape(5, 3, 8)
    assert (labels == np.sort(labels)).all()  # each shard by label
    assert (np.diff(labels[:, :, 0]) < 0).any()  # they themselves in any order
    assert split.partition == "shards(per_client=3, seed=0, shuffled=False)"


@given(num_examples=st.integers(1, 300), gamma=st.floats(0.0, 1.0), data=st.data())
@settings(max_examples=40, deadline=None)
def test_gamma_similarity_is_even_up_to_a_client_for_each_example(num_examples, gamma, data):
    num_clients = data.draw(st.integers(1, num_examples))
    split = partition.gamma_similarity(labelled(np.arange(num_examples) % 3), num_clients, gamma, seed=1)
    assert np.ptp(split.counts) <= 1
    assert_every_example_once(split)


@given(labels=st.lists(st.integers(0, 5), min_size=20, max_size=100), num_clients=st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_gamma_similarity_of_zero_is_sorted_blocks_and_of_one_is_iid(labels, num_clients):
    fed = labelled(np.array(labels), 6)
    blocks = clients(partition.gamma_similarity(fed, num_clients, 0.0, seed=len(labels)))
    in_blocks = np.concatenate([np.sort(fed.train.y[block]) for block in blocks])
    np.testing.assert_array_equal(in_blocks, np.sort(labels))
    iid = partition.iid(fed, num_clients, seed=len(labels))
    alike = partition.gamma_similarity(fed, num_clients, 1.0, seed=len(labels))
    np.testing.assert_array_equal(alike.rows, iid.rows)
    np.testing.assert_array_equal(alike.counts, iid.counts)


def test_gamma_similarity_between_has_a_part_of_each():
    """Of 1,000 examples of each class, 400 are dealt to ten clients; a client has 600 of its own class besides."""
    split = partition.gamma_similarity(labelled(np.arange(10_000) % 10), 10, 0.4, seed=2)
    counts = split.skew_report().counts
    # Of the cuts between blocks at half of the classes: 0.5 sqrt(10,000 * 0.4 * 0.6) = 24 examples.
    assert (abs(counts - (40 + 600 * np.eye(10))) < 5 * 24).all()
    neighbours = abs(np.subtract.outer(np.arange(10), np.arange(10))) < 2
    assert (abs(counts - 40)[~neighbours] < 5 * np.sqrt(40)).all()


def test_gamma_similarity_among_the_benign_clients_is_the_split_without_the_others():
    """The malicious clients, those of a run of this seed, have rows of benign clients beside it."""
    fed, seed = labelled(np.arange(1000) % 10), 3
    among = partition.gamma_similarity(fed, 14, 0.33, num_byzantine=4, seed=seed)
    malicious = choose_malicious(14, 4, seed)
    alone = clients(partition.gamma_similarity(fed, 10, 0.33, seed=seed))
    rows = clients(among)
    assert [list(row) for row, lies in zip(rows, malicious, strict=True) if not lies] == [list(row) for row in alone]
    assert [list(row) for row, lies in zip(rows, malicious, strict=True) if lies] == [list(row) for row in alone[:4]]
    most = partition.gamma_similarity(fed, 5, 0.0, num_byzantine=4)  # more malicious clients than there are rows
    assert len({tuple(row) for row in clients(most)}) == 1


def test_malicious_clients_may_have_examples_of_their_own_from_all():
    fed, malicious = labelled(np.arange(1000) % 10), choose_malicious(14, 4, 3)
    benign, own = (partition.gamma_similarity(fed, 14, 0.0, 4, 3, data) for data in ("benign", "iid"))
    assert (own.rows[~malicious] == benign.rows[~malicious]).all()
    assert (own.counts == benign.counts).all()
    drawn = clients(own)
    for row in (drawn[client] for client in np.flatnonzero(malicious)):
        assert len(set(row)) == 100
        assert len(set(fed.labels[row])) == 10, "an i.i.d. hundred misses a label with a chance of 3e-4"
    assert len({tuple(row) for row in drawn}) == 14
    with pytest.raises(ValueError, match="byzantine_data='all'"):
        partition.gamma_similarity(fed, 14, 0.0, 4, byzantine_data="all")


@pytest.mark.parametrize(("gamma", "dealt"), [(0.0, 0), (0.29, 29), (0.57, 57), (0.575, 57), (1.0, 100)])
def test_gamma_similarity_deals_the_floor_of_its_share(gamma, dealt):
    """Also where the product in floating point is just below. The labels reverse the order of the deal."""
    place = np.random.default_rng(0).permutation(100)
    split = partition.gamma_similarity(labelled(99 - place, 100), 100, gamma)
    client = np.empty(100, int)
    client[np.concatenate(clients(split))] = np.arange(100)
    np.testing.assert_array_equal(client, np.where(place < dealt, place, dealt + 99 - place))


def test_shards_within_a_label_are_random_samples():
    split = partition.shards(labelled(np.repeat([0, 1], 5000)), 4, per_client=1)
    for indices in clients(split):  # 2,500 of one label's 5,000, in the order of the file
        assert abs(np.mean(indices % 5000) - 2500) < 5 * 5000 / np.sqrt(12 * 2500)


@given(
    num_examples=st.integers(1, 2000),
    sigma=st.one_of(st.just(0.0), st.floats(0.0, 4.0), st.just(100.0)),
    min_size=st.integers(1, 10),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_quantity_skew_has_sizes_that_add_up(num_examples, sigma, min_size, data):
    min_size = min(min_size, num_examples)
    num_clients = data.draw(st.integers(1, num_examples // min_size))
    fed = labelled(np.zeros(num_examples, int))
    split = partition.quantity_skew(fed, num_clients, sigma, seed=num_examples, min_size=min_size)
    assert_every_example_once(split)
    assert split.counts.min() >= min_size
    if sigma == 0:
        assert split.counts.max() - split.counts.min() <= 1
    if sigma == 100 and num_clients > 1:  # one takes nearly all
        assert np.sort(split.counts)[-2] <= max(min_size, 0.5 * num_examples)


def test_quantity_skew_is_log_normal_with_the_labels_of_the_whole():
    num_clients, sigma = 400, 0.8
    fed = labelled(np.repeat([0, 1, 2], [600_000, 300_000, 100_000]))
    split = partition.quantity_skew(fed, num_clients, sigma, seed=1)
    logs = np.log(split.counts)
    np.testing.assert_allclose(logs.std(), sigma, atol=5 * sigma / np.sqrt(2 * num_clients))
    skewness = np.mean((logs - logs.mean()) ** 3) / logs.std() ** 3
    assert abs(skewness) < 5 * np.sqrt(6 / num_clients)
    shares = split.skew_report().counts / split.counts[:, None]
    error = np.sqrt(0.25 / split.counts)
    assert (np.abs(shares - [0.6, 0.3, 0.1]) < 6 * error[:, None]).all()


def test_a_smallest_size_changes_only_clients_below_it():
    fed = labelled(np.arange(100_000) % 10)
    free = partition.quantity_skew(fed, 50, 1.5, seed=2).counts.astype(float)
    held = partition.quantity_skew(fed, 50, 1.5, seed=2, min_size=500).counts
    small = held == 500
    assert 3 < small.sum() < 47
    assert free[small].max() < free[~small].min()
    ratio = held[~small] / free[~small]
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=2 / held[~small].min() + 2 / free[~small].min())


@given(
    beta=st.sampled_from([1e-6, 1e-3, 0.05, 0.5, 5.0, 1e6]),
    sigma=st.floats(0.0, 3.0),
    min_size=st.integers(1, 10),
    num_clients=st.integers(1, 40),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_dirichlet_quantity_keeps_sizes_and_examples(beta, sigma, min_size, num_clients, seed):
    labels = np.repeat(np.arange(7), [0, 1, 5, 300, 100, 0, 94])  # some rare, some absent
    fed = labelled(labels, 7)
    split = partition.dirichlet_quantity(fed, num_clients, beta, sigma, seed=seed, min_size=min_size)
    assert_every_example_once(split)
    sizes = partition.quantity_skew(fed, num_clients, sigma, seed=seed, min_size=min_size).counts
    np.testing.assert_array_equal(split.counts, sizes)
    assert split.counts.min() >= min_size


def test_dirichlet_quantity_at_the_ends_of_beta():
    fed = labelled(np.repeat(np.arange(4), [4000, 8000, 2000, 6000]))
    few = partition.dirichlet_quantity(fed, 50, 1e-3, 1.0).skew_report()
    many = partition.dirichlet_quantity(fed, 50, 1e6, 1.0).skew_report()
    # A table with given margins needs up to 50 + 4 - 1 entries, and as many again what the fit left undone.
    assert (few.counts > 0).sum() < 2 * (50 + 4 - 1)
    whole = np.outer(many.sizes, [0.2, 0.4, 0.1, 0.3])
    assert np.abs(many.counts - whole).max() < 0.01 * whole.max() + 1


@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0])
def test_dirichlet_quantity_has_the_moments_of_the_distribution(beta):
    """With many clients and balanced classes the factors of the classes are nearly one."""
    num_clients, num_classes, size = 400, 5, 500
    fed = labelled(np.arange(num_clients * size) % num_classes)
    mixes = partition.dirichlet_quantity(fed, num_clients, beta, 0.0, seed=4).skew_report().counts / size
    variance = (num_classes - 1) / (num_classes**2 * (num_classes * beta + 1))
    np.testing.assert_allclose(mixes.sum(axis=1), 1.0, rtol=1e-9)
    np.testing.assert_allclose(((mixes - 1 / num_classes) ** 2).mean(), variance, rtol=0.15)


@given(seed=st.integers(0, 999), num_classes=st.integers(1, 6), num_clients=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_fit_scales_rows_and_columns_alone_and_rounding_moves_little(seed, num_classes, num_clients):
    rng = np.random.default_rng(seed)
    per_class, sizes = (rng.multinomial(60_000, rng.dirichlet(np.full(k, 5.0))) for k in (num_classes, num_clients))
    logs = rng.normal(size=(num_classes, num_clients))
    fitted = _quantity_skew._fitted(logs, per_class, sizes)
    np.testing.assert_allclose(fitted.sum(axis=1), per_class)
    np.testing.assert_allclose(fitted.sum(axis=0), sizes, atol=0.1)
    scaling = np.log(fitted) - logs  # log a_c + log b_m
    scaling -= scaling[:1] + scaling[:, :1] - scaling[0, 0]
    np.testing.assert_allclose(scaling, 0, atol=1e-8)
    counts = _quantity_skew._rounded(fitted, per_class, sizes)
    np.testing.assert_array_equal(counts.sum(axis=1), per_class)
    np.testing.assert_array_equal(counts.sum(axis=0), sizes)
    assert np.abs(counts - fitted).max() < 2


def owned(users, names=()):
    x, y = np.zeros((len(users), 1), np.float32), np.arange(len(users)) % 3
    return from_arrays(x, y, x, y, mean=(0.0,), std=(1.0,), users=users, user_names=names)


OWNED = owned(np.repeat([0, 1, 2], [10, 20, 30]), ("a", "b", "c"))


@given(users=st.lists(st.integers(0, 12), min_size=1, max_size=120), min_size=st.integers(1, 8), data=st.data())
@settings(max_examples=60, deadline=None)
def test_natural_makes_clients_of_users(users, min_size, data):
    users = np.array(users)
    large = [u for u in np.unique(users) if np.sum(users == u) >= min_size]
    fed = owned(users)
    if not large:
        with pytest.raises(ValueError, match=r"0 users with at least \d+ of its|cannot have \d+ examples"):
            partition.natural(fed, min_size=min_size)
        return
    split = partition.natural(fed, min_size=min_size)
    assert [set(users[indices]) for indices in clients(split)] == [{u} for u in large]
    np.testing.assert_array_equal(np.sort(np.concatenate(clients(split))), np.flatnonzero(np.isin(users, large)))
    num_clients = data.draw(st.integers(1, len(large)))
    some = partition.natural(fed, num_clients, min_size, seed=len(users))
    chosen = [users[indices[0]] for indices in clients(some)]
    assert len(chosen) == num_clients
    assert sorted(set(chosen)) == chosen
    for user, indices in zip(chosen, clients(some), strict=True):
        np.testing.assert_array_equal(np.sort(indices), np.flatnonzero(users == user))
    assert some.skew_report().counts.sum() == np.isin(users, chosen).sum()


def test_natural_draws_users_by_its_seed_and_accepts_large_numbers():
    fed = owned(np.repeat(np.arange(100), 3))
    one, same, other = (partition.natural(fed, 10, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.rows, same.rows)
    assert not np.array_equal(np.sort(one.rows), np.sort(other.rows))
    assert partition.natural(owned(np.array([5, 2**31 - 1, 5]))).counts.tolist() == [2, 1]


@pytest.mark.parametrize("kind", PARTITIONS)
def test_beginnings_of_rows_are_random_subsets_and_seeds_differ(kind):
    """Neither the order of the file nor the class tells where in its row an example lies."""
    fed = labelled(np.repeat(np.arange(4), 2500))
    split, other = (PARTITIONS[kind](fed, 2, seed=seed) for seed in (7, 8))
    for indices in clients(split):
        for values in (indices, fed.train.y[indices] == fed.train.y[indices[0]]):
            correlation = np.corrcoef(np.arange(len(indices)), values)[0, 1]
            assert abs(correlation) < 5 / np.sqrt(len(indices))
    assert not np.array_equal(clients(split)[0], clients(other)[0])


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
        (lambda fed: partition.dirichlet(fed, 2, 0.1, balanced="yes"), "balanced='yes'"),
        (lambda fed: partition.label_affinity(fed, 2, 1.1), "q=1.1"),
        (lambda fed: partition.label_affinity(fed, 2, -0.1), "q=-0.1"),
        (lambda fed: partition.label_groups(fed, 4, (0.5, 0.0)), r"fractions=0.0: must be in \(0, 1\]"),
        (lambda fed: partition.label_groups(fed, 4, (1.1,)), "fractions=1.1"),
        (lambda fed: partition.label_groups(fed, 4, (float("nan"),)), "fractions=nan"),
        (lambda fed: partition.label_groups(fed, 2), "num_clients=2"),
        (lambda fed: partition.label_groups(fed, 4, seed=-1), "seed=-1"),
        (lambda fed: partition.shards(fed, 2, 0), "per_client=0"),
        (lambda fed: partition.shards(fed, 20, 6), r"per_client=6: must be an integer in \[1, 5\]"),
        (lambda fed: partition.shards(fed, 101), "num_clients=101"),
        (lambda fed: partition.gamma_similarity(fed, 2, 1.1), "gamma=1.1: must be in"),
        (lambda fed: partition.gamma_similarity(fed, 2, float("nan")), "gamma=nan"),
        (lambda fed: partition.gamma_similarity(fed, 101, 0.5), "num_clients=101"),
        (lambda fed: partition.gamma_similarity(fed, 5, 0.5, num_byzantine=5), "num_byzantine=5"),
        (lambda fed: partition.quantity_skew(fed, 2, -1.0), "sigma=-1.0"),
        (lambda fed: partition.quantity_skew(fed, 2, float("nan")), "sigma=nan"),
        (lambda fed: partition.quantity_skew(fed, 11, 1.0, min_size=10), "num_clients=11: .*10 examples each"),
        (lambda fed: partition.dirichlet_quantity(fed, 2, 0.0, 1.0), "beta=0.0"),
        (lambda fed: partition.dirichlet_quantity(fed, 2, 1.0, 101.0), "sigma=101.0"),
        (lambda fed: partition.dirichlet_quantity(fed, 101, 1.0, 1.0), "num_clients=101"),
        (
            lambda _: partition.label_affinity(labelled([0] * 50, 2), 2, 1.0),
            r"q=1.0, seed=0\): none of 1000 draws",
        ),
        (lambda fed: partition.label_groups(fed, 9, (0.1,)), "num_clients=9: .* hold 9 labels, .* the 10 classes"),
        (lambda _: partition.label_groups(labelled([0] * 30 + [1]), 6, (0.5,)), "num_clients=6: some would have no"),
        (lambda fed: partition.natural(fed), "arrays: has no natural users"),
        (
            lambda _: partition.natural(OWNED, 4),
            "num_clients=4: arrays has 3 users .* try fewer clients or a smaller",
        ),
        (lambda _: partition.natural(OWNED, 3, min_size=11), "num_clients=3: arrays has 2 users with at least 11 "),
        (lambda _: partition.natural(OWNED, min_size=31), "min_size=31: arrays has 0 users "),
        (lambda fed: partition.natural(fed, 0), "num_clients=0"),
        (lambda fed: partition.natural(fed, min_size=0), "min_size=0"),
        (lambda fed: partition.natural(fed, seed=1.5), "seed=1.5"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message) as error:
        build(labelled(np.arange(100) % 10))
    assert "\n" not in str(error.value)


def test_partition_describes_itself():
    fed = labelled(np.arange(100) % 10)
    for split, described in (
        (partition.dirichlet(fed, 3, 0.5, seed=2), "dirichlet(beta=0.5, seed=2)"),
        (partition.dirichlet(fed, 3, 0.5, min_size=4), "dirichlet(beta=0.5, seed=0, min_size=4)"),
        (partition.dirichlet(fed, 3, 0.5, balanced=True), "dirichlet(beta=0.5, seed=0, balanced)"),
        (partition.label_groups(fed, 4, [0.25, 0.5], seed=3), "label_groups(fractions=(0.25, 0.5), seed=3)"),
        (partition.shards(fed, 5), "shards(per_client=2, seed=0)"),
        (partition.gamma_similarity(fed, 3, 0.5), "gamma_similarity(gamma=0.5, seed=0)"),
        (partition.quantity_skew(fed, 3, 0.5, seed=1), "quantity_skew(sigma=0.5, seed=1)"),
        (
            partition.dirichlet_quantity(fed, 3, 0.5, 1.0, min_size=2),
            "dirichlet_quantity(beta=0.5, sigma=1.0, seed=0, min_size=2)",
        ),
        (partition.natural(OWNED, 2), "natural(num_clients=2, seed=0)"),
        (partition.natural(OWNED, min_size=2, seed=1), "natural(min_size=2, seed=1)"),
        (replace(partition.iid(fed, 3), name="x"), "iid(seed=0)"),
    ):
        assert split.partition == described
