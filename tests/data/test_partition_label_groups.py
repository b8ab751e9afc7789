"""``label_groups`` with stated shares of the clients, and with clients of equal size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_partition import assert_every_example_once, labelled

from fedjax_drag.data import partition

MNIST = labelled(np.arange(6000) % 10)


def labels_of(split):
    return (split.skew_report().counts > 0).sum(axis=1)


def test_groups_have_their_shares_of_the_clients():
    split = partition.label_groups(MNIST, 20, group_shares=(0.5, 0.3, 0.2))
    np.testing.assert_array_equal(labels_of(split), [1] * 10 + [2] * 6 + [5] * 4)
    assert split.partition == "label_groups(fractions=(0.1, 0.2, 0.5), group_shares=(0.5, 0.3, 0.2), seed=0)"
    even = partition.label_groups(MNIST, 20, group_shares=(1 / 3, 1 / 3, 1 / 3))
    np.testing.assert_array_equal(even.rows, partition.label_groups(MNIST, 20).rows)


@given(
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    num_clients=st.integers(40, 60),
    sizes=st.sampled_from(["by_class", "equal"]),
)
@settings(max_examples=30, deadline=None)
def test_any_shares_give_groups_to_within_a_client(shares, num_clients, sizes):
    stated = np.array(shares) / sum(shares)
    fractions = [(g + 1) / 10 for g in range(len(shares))]
    split = partition.label_groups(MNIST, num_clients, fractions, group_shares=stated.tolist(), sizes=sizes)
    assert_every_example_once(split)
    groups = np.array([(labels_of(split) == g + 1).sum() for g in range(len(shares))])
    assert groups.sum() == num_clients
    assert (abs(groups - stated * num_clients) < 1).all()


@pytest.mark.parametrize("num_clients", [20, 100])
def test_equal_sizes_where_the_labels_allow_them(num_clients):
    for seed in range(3):
        split = partition.label_groups(MNIST, num_clients, seed=seed, sizes="equal")
        assert_every_example_once(split)
        labels = labels_of(split)
        np.testing.assert_array_equal(labels, np.array([1, 2, 5])[np.arange(num_clients) * 3 // num_clients])
        assert (abs(split.counts - 6000 / num_clients) <= labels).all()
    assert split.partition == "label_groups(fractions=(0.1, 0.2, 0.5), seed=2, sizes=equal)"


def most_even_sizes(holds, per_class):
    """Sizes of the least sum of squares, among all divisions of the classes among their holders.

    In turn, each class is poured into its holders like water, given what these have of the others.
    """
    division = np.zeros(holds.shape)
    for _ in range(300):
        for label, held in enumerate(holds):
            others = (division.sum(axis=0) - division[label])[held]
            depth = np.sort(others)
            levels = (per_class[label] + np.cumsum(depth)) / np.arange(1, len(depth) + 1)
            level = levels[np.flatnonzero(levels >= depth)[-1]]
            division[label, held] = np.maximum(level - others, 0)
    return division.sum(axis=0)


@pytest.mark.thorough
@given(
    per_class=st.lists(st.integers(200, 2000), min_size=2, max_size=6),
    fractions=st.lists(st.sampled_from([0.2, 0.4, 1.0]), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_sizes_are_as_equal_as_the_labels_allow(per_class, fractions, seed):
    """The most even sizes have the least sum of any convex function, so also the least relative entropy."""
    per_class = np.array(per_class)
    fed = labelled(np.repeat(np.arange(len(per_class)), per_class))
    split = partition.label_groups(fed, 18, fractions, seed, sizes="equal")
    counts = split.skew_report().counts
    best = most_even_sizes(counts.T > 0, per_class)
    assert (abs(split.counts - best) <= len(per_class) + 0.02 * best).all()


def test_clients_of_rare_and_common_labels_follow_the_sizes_of_classes():
    """As in adult: a label each, three quarters of the examples are of one of them."""
    fed = labelled(np.repeat([0, 1], [24_720, 7841]))
    split = partition.label_groups(fed, 20, sizes="equal")
    assert np.ptp(split.counts) <= 80  # 1,628 on the average
    assert np.bincount(split.skew_report().counts.argmax(axis=1)).tolist() == [15, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group_shares": (0.5, 0.5)}, r"group_shares=\(0.5, 0.5\): must be 3 numbers, as fractions, that add up to 1"),
        ({"fractions": None}, "fractions=None: must be a sequence of numbers, one for each group"),
        ({"fractions": 0.5}, "fractions=0.5: must be a sequence of numbers, one for each group"),
        ({"group_shares": 1}, "group_shares=1: must be a sequence of numbers, one for each group"),
        ({"group_shares": (0.5, 0.4, 0.2)}, r"group_shares=.*: must be 3 numbers, .* add up to 1"),
        ({"group_shares": (1.0, 0.0, 0.0)}, r"group_shares=0.0: must be in \(0, 1\]"),
        ({"group_shares": (0.98, 0.01, 0.01)}, "group_shares=.*: must give every group one of num_clients=20 clients"),
        ({"sizes": "even"}, "sizes='even': must be one of by_class, equal"),
    ],
)
def test_impossible_groups_are_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        partition.label_groups(MNIST, 20, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{}, {"sizes": "equal"}, {"holders": "random"}])
def test_a_class_without_examples_has_no_holder(options):
    some = labelled(np.where(np.arange(6000) % 10 == 4, 7, np.arange(6000) % 10), num_classes=11)
    for seed in range(5):
        split = partition.label_groups(some, 20, seed=seed, **options)
        assert_every_example_once(split)
        assert split.counts.min() > 0


def test_random_holders_are_drawn_from_all_classes():
    """Client m holds a class with probability k_m / C, independently of the other clients."""
    held = []
    for seed in range(100):
        split = partition.label_groups(MNIST, 20, seed=seed, holders="random")
        np.testing.assert_array_equal(labels_of(split), [1] * 7 + [2] * 7 + [5] * 6)
        held.append((split.skew_report().counts > 0).sum(axis=0))
    assert_every_example_once(split)
    assert split.partition == "label_groups(fractions=(0.1, 0.2, 0.5), seed=99, holders=random)"
    chances = np.array([0.1] * 7 + [0.2] * 7 + [0.5] * 6)
    assert np.min(held) >= 1
    np.testing.assert_allclose(
        np.mean(held, axis=0), chances.sum(), atol=4 * np.sqrt((chances * (1 - chances)).sum() / 100)
    )
    np.testing.assert_allclose(np.var(held), (chances * (1 - chances)).sum(), rtol=0.15)
    even = (partition.label_groups(MNIST, 20).skew_report().counts > 0).sum(axis=0)
    assert np.ptp(even) <= 1


def test_random_holders_that_never_cover_all_classes_are_refused():
    with pytest.raises(
        ValueError, match=r"^holders='random': none of 10000 draws gave each of 20 classes a holder; .*$"
    ):
        partition.label_groups(labelled(np.arange(400) % 20), 20, (0.05,), holders="random")
    with pytest.raises(ValueError, match="holders='any': must be one of even, random"):
        partition.label_groups(MNIST, 20, holders="any")
