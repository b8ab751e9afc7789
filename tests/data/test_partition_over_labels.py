"""``dirichlet(..., over="labels")``: a mix of labels and an equal number of examples for each client."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_partition import assert_every_example_once, labelled

from fedjax_drag.data import partition
from fedjax_drag.data.partition import _label_skew


@given(
    num_clients=st.integers(1, 12),
    beta=st.one_of(st.sampled_from([1e-6, 1e6]), st.floats(0.01, 10)),
    labels=st.lists(st.integers(0, 6), min_size=12, max_size=150),
    seed=st.integers(0, 2**32),
    over=st.sampled_from(["labels", "labels_in_turn"]),
)
@settings(max_examples=40, deadline=None)
def test_clients_have_equal_numbers_and_every_example_is_used_once(num_clients, beta, labels, seed, over):
    fed = labelled(np.array(labels), 7)
    split = partition.dirichlet(fed, num_clients, beta, seed=seed, over=over)
    assert_every_example_once(split)
    assert np.ptp(split.counts) <= 1
    assert split.partition == f"dirichlet(beta={beta}, seed={seed}, over {over.replace('_', ' ')})"


def enumerated(mixes, per_class, in_turn):
    """Probabilities of all tables of counts, from the definition: place by place, and label by label."""
    num_clients, num_classes = len(mixes), len(per_class)

    @cache
    def law(places, left):
        """Of what clients get from here on, given their free places and the examples left of each class."""
        if not sum(places):
            return {(0,) * (num_clients * num_classes): 1.0}
        table = Counter()
        turn = next(client for client, free in enumerate(places) if free)
        for client, free in enumerate(places):
            if in_turn and client != turn:
                continue
            chance = 1.0 if in_turn else free / sum(places)
            open_mass = sum(mixes[client][k] for k in range(num_classes) if left[k])
            for k in range(num_classes):
                if not free or not left[k]:
                    continue
                probability = chance * mixes[client][k] / open_mass
                after = law(
                    tuple(p - (m == client) for m, p in enumerate(places)),
                    tuple(n - (c == k) for c, n in enumerate(left)),
                )
                for rest, of_rest in after.items():
                    cells = list(rest)
                    cells[k * num_clients + client] += 1
                    table[tuple(cells)] += probability * of_rest
        return dict(table)

    total = sum(per_class)
    return law(tuple(total // num_clients + (m < total % num_clients) for m in range(num_clients)), tuple(per_class))


@pytest.mark.parametrize("in_turn", [False, True])
def test_tables_of_counts_have_the_probabilities_of_the_definition(in_turn):
    mixes, per_class, draws = np.array([[0.6, 0.3, 0.1], [0.05, 0.15, 0.8]]), (3, 2, 2), 2000
    law = enumerated(mixes.tolist(), per_class, in_turn)
    assert abs(sum(law.values()) - 1) < 1e-12
    rng = np.random.default_rng(0)
    drawn = Counter(
        tuple(_label_skew.draw_counts(rng, np.log(mixes), np.array(per_class), in_turn).ravel().tolist())
        for _ in range(draws)
    )
    assert set(drawn) <= set(law)
    for table, probability in law.items():
        assert abs(drawn[table] / draws - probability) < 5 * np.sqrt(probability / draws) + 1e-3


@pytest.mark.parametrize("beta", [0.01, 0.3, 5.0])
def test_mixes_have_the_moments_of_the_distribution(beta):
    """One component of Dir(beta 1_C) has mean 1 / C and variance (C - 1) / (C^2 (C beta + 1))."""
    num_classes = 10
    logs = _label_skew.log_mixes(np.random.default_rng(1), 20_000, num_classes, beta)
    mixes = np.exp(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))
    np.testing.assert_allclose(mixes.mean(axis=0), 1 / num_classes, atol=0.01)
    variance = (num_classes - 1) / (num_classes**2 * (num_classes * beta + 1))
    np.testing.assert_allclose(mixes.var(axis=0), variance, rtol=0.1)


def test_counts_are_mixes_where_no_class_is_exhausted_early():
    """The variance of a client's share of a label: that of its mix, and that of N / M draws from it."""
    num_clients, num_classes, of_client = 400, 10, 100
    fed = labelled(np.arange(num_clients * of_client) % num_classes)
    for beta in (0.5, 2.0):
        shares = partition.dirichlet(fed, num_clients, beta, over="labels").skew_report().counts / of_client
        mix = (num_classes - 1) / (num_classes**2 * (num_classes * beta + 1))
        sampling = (1 / num_classes - 1 / num_classes**2 - mix) / of_client
        np.testing.assert_allclose(shares.var(), mix + sampling, rtol=0.1)
        np.testing.assert_allclose(shares.mean(axis=0), 1 / num_classes, rtol=1e-9)


def test_balanced_is_refused_where_sizes_are_equal():
    with pytest.raises(ValueError, match=r"^balanced=True: must be False with over='labels', where .*$"):
        partition.dirichlet(labelled(np.arange(40) % 4), 4, 0.5, balanced=True, over="labels")
    with pytest.raises(ValueError, match="over='label': must be one of clients, labels, labels_in_turn"):
        partition.dirichlet(labelled(np.arange(40) % 4), 4, 0.5, over="label")
