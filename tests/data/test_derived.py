"""Data sets for other tasks, made of ones with a label for each example."""

import numpy as np
import pytest

from fedjax_drag.data import from_arrays, load, next_tokens, pairs, partition, shapes

DIGITS = load("digits", validation_fraction=100)
TEXTS = np.arange(60, dtype=np.int8).reshape(10, 6) % 7


def test_a_pair_has_the_labels_of_both_images():
    fed = pairs(DIGITS, seed=3)
    assert (fed.name, fed.num_classes, fed.input_shape) == ("digits_pairs", 0, (8, 16, 1))
    for part, single in ((fed.train, DIGITS.train), (fed.test, DIGITS.test), (fed.validation, DIGITS.validation)):
        left, right = part.x[:, :, :8], part.x[:, :, 8:]
        np.testing.assert_array_equal(left, single.x)
        label = {image.tobytes(): y for image, y in zip(single.x, single.y, strict=True)}
        assert sorted(map(bytes, right)) == sorted(map(bytes, left))  # each once on either side
        for y, one, other in zip(part.y, left, right, strict=True):
            assert set(np.flatnonzero(y)) == {label[one.tobytes()], label[other.tobytes()]}
    again, another = pairs(DIGITS, seed=3), pairs(DIGITS, seed=4)
    np.testing.assert_array_equal(fed.train.x, again.train.x)
    assert (fed.train.x != another.train.x).any()


def test_pairs_of_clients_are_of_their_own_images():
    split = partition.dirichlet(DIGITS, 6, beta=0.1)
    fed = pairs(split)
    np.testing.assert_array_equal(fed.rows, split.rows)
    for row, count in zip(fed.rows, fed.counts, strict=True):
        own = row[:count]
        held = {image.tobytes() for image in split.train.x[own]}
        assert all(image.tobytes() in held for image in fed.train.x[own, :, 8:])
        classes = np.unique(split.train.y[own])
        np.testing.assert_array_equal(np.flatnonzero(fed.train.y[own].any(0)), classes)


def test_test_examples_of_clients_are_derived_too():
    own = partition.natural(
        from_arrays(
            *[DIGITS.test.x, DIGITS.test.y] * 2, 10, users=np.arange(355) // 100, test_users=np.arange(355) // 100
        )
    )
    fed = pairs(own)
    assert fed.client_test.examples.x.shape[1:] == fed.input_shape
    assert (fed.users, fed.test_users) == (None, None)
    following = TEXTS[:, -1] + 1
    users = np.arange(10) // 5
    texts = partition.natural(from_arrays(TEXTS, following, TEXTS, following, 8, users=users, test_users=users))
    assert next_tokens(texts).client_test.examples.y.shape == TEXTS.shape


@pytest.mark.parametrize("derive", [pairs, next_tokens])
def test_inputs_of_several_arrays_are_refused(derive):
    x = {"a": TEXTS.astype(np.float32)}
    with pytest.raises(ValueError, match=r"fed=.*: must be"):
        derive(from_arrays(x, TEXTS[:, 0], x, TEXTS[:, 0], 8))


def test_every_token_has_the_next_one_as_its_target():
    following = TEXTS[:, -1] + 1
    fed = from_arrays(TEXTS, following, TEXTS, following, 8, users=np.arange(10) // 5)
    tokens = next_tokens(partition.natural(fed))
    assert (tokens.num_classes, tokens.num_clients, tokens.has_labels) == (8, 2, False)
    for part in (tokens.train, tokens.test):
        np.testing.assert_array_equal(part.x, TEXTS)
        np.testing.assert_array_equal(part.y[:, :-1], TEXTS[:, 1:])
        np.testing.assert_array_equal(part.y[:, -1], following)
        assert part.y.dtype == np.int32
    assert repr(tokens).count("of 8 classes") == 1


def test_shapes_are_where_the_classes_say():
    fed = load("shapes")
    assert (fed.train.x.shape, fed.train.y.shape, fed.num_classes) == ((1000, 16, 16, 1), (1000, 16, 16), 3)
    clear = shapes(num_examples=30, num_test_examples=2, size=12, noise=0.0, seed=1)
    np.testing.assert_array_equal(clear.train.x[..., 0], clear.train.y > 0)
    for y in clear.train.y:
        rows, columns = (np.flatnonzero((y == 2).any(axis)) for axis in (1, 0))
        box = y[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert (box == 2).all()  # a square, which nothing covers
        assert box.shape[0] >= 3
        assert abs(box.shape[0] - box.shape[1]) <= 1
    assert abs((fed.train.x[..., 0] - (fed.train.y > 0)).std() - 0.5) < 0.01
    np.testing.assert_array_equal(fed.train.x, shapes().train.x)
    with pytest.raises(ValueError, match="size=7"):
        shapes(size=7)
    with pytest.raises(ValueError, match="noise=-1"):
        shapes(noise=-1)


@pytest.mark.parametrize("make", [pairs, next_tokens])
def test_what_does_not_fit_is_refused(make):
    for fed in (load("synthetic"), pairs(DIGITS)):
        with pytest.raises(ValueError, match=r"^fed=FederatedDataset\(.*\): must be (images|tokens) "):
            make(fed)


@pytest.mark.parametrize("change", [pairs, partition.noise_skew])
def test_examples_that_two_clients_hold_are_not_changed_for_one_of_them(change):
    shared = partition.gamma_similarity(DIGITS, 5, gamma=0.5, num_byzantine=2)
    with pytest.raises(ValueError, match=r": must be of clients without common examples, unlike .*num_byzantine=2"):
        change(shared)
