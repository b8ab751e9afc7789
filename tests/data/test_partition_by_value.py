"""Splits by a column, a number, a size or noise, which need no labels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_partition import assert_every_example_once, clients

from fedjax_drag.data import from_arrays, load, partition

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.integers(0, 4, (120, 1)), RNG.integers(0, 2, (120, 2)), RNG.normal(size=(120, 1))], 1)
X = X.astype(np.float32)
Y = RNG.normal(size=120).astype(np.float32)
FED = from_arrays(X, Y, X, Y)
TEXTS = np.zeros((9, 5), np.int8)


def test_every_value_of_a_column_is_a_client():
    split = partition.by_column(FED, 0)
    assert_every_example_once(split)
    for value, own in enumerate(clients(split)):
        assert set(X[own, 0]) == {value}
    combinations = partition.by_column(FED, [1, 2])
    assert [np.unique(X[own, 1:3], axis=0).tolist() for own in clients(combinations)] == [
        [[0, 0]],
        [[0, 1]],
        [[1, 0]],
        [[1, 1]],
    ]
    assert combinations.partition == "by_column(column=[1, 2], seed=0)"


@given(num_values=st.integers(1, 9), num_clients=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_values_are_grouped_or_shared(num_values, num_clients, seed):
    values = np.resize(np.arange(num_values) * 3.5, 120)
    split = partition.by_column(FED, values, num_clients, seed=seed)
    assert split.num_clients == num_clients
    assert_every_example_once(split)
    held = [np.unique(values[own]) / 3.5 for own in clients(split)]
    if num_clients <= num_values:  # intervals of as many values, up to one
        np.testing.assert_array_equal(np.concatenate(held), np.arange(num_values))
        assert np.ptp([len(own) for own in held]) <= 1
    else:  # one value each, shared by as many clients, up to one
        assert [len(own) for own in held] == [1] * num_clients
        assert np.ptp(np.bincount(np.concatenate(held).astype(int), minlength=num_values)) <= 1
        for value in range(num_values):
            assert np.ptp(split.counts[[own[0] == value for own in held]]) <= 1
    again = partition.by_column(split, values, num_clients, seed=seed)
    np.testing.assert_array_equal(split.rows, again.rows)


def test_values_may_be_words():
    words = np.array(["state", "private", None, "state"] * 30, object)
    assert [len(own) for own in clients(partition.by_column(FED, words))] == [30, 30, 60]


def test_quantiles_of_the_target_are_intervals_and_noise_makes_them_even():
    split = partition.by_quantile(FED, 7)
    np.testing.assert_array_equal(split.counts, [18, 17, 17, 17, 17, 17, 17])
    np.testing.assert_array_equal(np.sort(Y), np.concatenate([np.sort(Y[own]) for own in clients(split)]))
    means = lambda strictness: [Y[own].mean() for own in clients(partition.by_quantile(FED, 4, strictness=strictness))]
    assert np.ptp(means(1.0)) > np.ptp(means(0.7)) > 2 * np.ptp(means(0.0))
    by_input = partition.by_quantile(FED, 5, column=3)
    np.testing.assert_array_equal(np.sort(X[:, 3]), np.concatenate([np.sort(X[own, 3]) for own in clients(by_input)]))
    assert by_input.partition == "by_quantile(column=3, strictness=1, seed=0)"
    assert_every_example_once(partition.by_quantile(from_arrays(X, Y * 0, X, Y), 7))


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_sizes_of_a_power_law(power):
    split = partition.quantity_skew(FED, 8, power=power)
    wanted = 120 * np.arange(1, 9) ** power / (np.arange(1, 9) ** power).sum()
    assert_every_example_once(split)
    if power < 2:  # else the first clients are lifted to one example
        np.testing.assert_array_equal(split.counts[:-1], np.floor(wanted[:-1]))
    assert split.counts.min() >= 1
    assert (np.diff(split.counts) >= 0).all()


def test_dirichlet_sizes_have_the_spread_of_the_draw():
    large = from_arrays(np.zeros((20_000, 1), np.float32), np.zeros(20_000, np.float32), X[:, :1], Y)
    split = partition.quantity_skew(large, 500, beta=4.0, seed=1)
    assert_every_example_once(split)
    # Var p_m of Dir(beta) on M clients: (1 - 1 / M) / (M (M beta + 1)).
    shares = split.counts / 20_000
    assert abs(shares.std() / np.sqrt((1 - 1 / 500) / (500 * (500 * 4 + 1))) - 1) < 0.15
    assert partition.quantity_skew(FED, 8, beta=1e-6, seed=3).counts.max() == 113


def test_noise_grows_with_the_client_and_spares_the_test_images():
    digits = load("digits", normalize="unit", validation_fraction=100)
    split = partition.noise_skew(digits, 5, level=0.5, seed=4)
    even = partition.iid(digits, 5, seed=4)
    np.testing.assert_array_equal(split.rows, even.rows)
    added = split.train.x - digits.train.x / np.float32(255)
    for client, own in enumerate(clients(split), 1):
        noise = added[own]
        assert abs(noise.mean()) < 5 * 0.5 / np.sqrt(noise.size)
        assert abs(noise.std() / (0.1 * client) - 1) < 0.03
    for part in ("test", "validation"):
        seen = split.preprocess(getattr(split, part).x), digits.preprocess(getattr(digits, part).x)
        np.testing.assert_allclose(*seen, rtol=1e-6)
    again = partition.noise_skew(even, level=0.5, seed=4)  # the clients that there are
    np.testing.assert_array_equal(split.train.x, again.train.x)
    assert again.partition == split.partition == "iid(seed=4), noise_skew(level=0.5, seed=4)"
    quiet = partition.noise_skew(even, level=0.0)
    np.testing.assert_allclose(quiet.preprocess(quiet.train.x), digits.preprocess(digits.train.x), rtol=1e-6)
    seen = np.asarray(partition.noise_skew(partition.iid(FED, 1), level=2.0).preprocessing(FED.train.x))
    np.testing.assert_array_equal(seen, FED.preprocess(FED.train.x))  # what scales inputs is that of the clean ones


def test_noise_is_in_the_units_of_what_a_model_sees():
    split = partition.noise_skew(FED, 1, level=2.0)
    added = np.asarray(split.preprocess(split.train.x)) - np.asarray(FED.preprocess(FED.train.x))
    np.testing.assert_allclose(added.std(0), 2.0, rtol=0.3)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda: partition.by_column(FED, 4), "column=4: must be "),
        (lambda: partition.by_column(FED, [], 4), r"column=\[\]: must name one column at least"),
        (
            lambda: partition.by_column(FED, np.zeros(7)),
            r"column=array float64\[7\]: must have a value for each of the",
        ),
        (lambda: partition.by_column(load("digits"), 0), r"column=0: inputs \[8, 8, 1\] of digits have no columns"),
        (lambda: partition.by_column(FED, np.arange(120), 121), "num_clients=121: cannot have an example each"),
        (
            lambda: partition.by_column(FED, np.arange(120) == 0, 4),
            "num_clients=4: 2 clients would share the 1 examples",
        ),
        (lambda: partition.by_quantile(FED, 3, strictness=1.5), "strictness=1.5"),
        (
            lambda: partition.by_quantile(FED, 3, column=[1, 2]),
            r"column: float32.N, 2.; must be a finite number for each example$",
        ),
        (
            lambda: partition.by_quantile(from_arrays(X, X[:, 1:], X, X[:, 1:]), 3),
            r"targets: float32.N, 3.; must be a finite number for each example, or column be given",
        ),
        (lambda: partition.quantity_skew(FED, 3), "sigma, power, beta: none given; must be one of them"),
        (
            lambda: partition.quantity_skew(FED, 3, 1.0, beta=1.0),
            "sigma, power, beta: sigma, beta given; must be one of them",
        ),
        (lambda: partition.quantity_skew(FED, 3, power=-1), "power=-1: must be"),
        (lambda: partition.noise_skew(FED), "num_clients: must be given, or arrays split among clients before"),
        (lambda: partition.noise_skew(FED, 3, level=-1), "level=-1: must be"),
        (
            lambda: partition.noise_skew(from_arrays(TEXTS, TEXTS[:, 0], TEXTS, TEXTS[:, 0]), 3),
            "noise_skew: needs one array of numbers as inputs, not the int8.N, 5. of arrays",
        ),
        *(
            (
                lambda by=by: by(FED),
                "arrays: targets are float32.N.; must be labels, .*: by_quantile, by_column, natural",
            )
            for by in (
                lambda fed: partition.dirichlet(fed, 3, beta=1.0),
                lambda fed: partition.dirichlet_quantity(fed, 3, beta=1.0, sigma=1.0),
                lambda fed: partition.label_affinity(fed, 3, q=0.5),
                lambda fed: partition.label_groups(fed, 3),
                lambda fed: partition.shards(fed, 3),
                lambda fed: partition.gamma_similarity(fed, 3, gamma=0.5),
            )
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(split, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        split()
    assert "\n" not in str(error.value)
