import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.data import from_arrays, load, loading, partition, synthetic
from fedjax_drag.data.normalization import NORMALIZE, statistics

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 5, 4, 3), np.uint8)
TABLE = np.random.default_rng(1).normal([3, -200, 0], [1, 50, 0], (60, 3)).astype(np.float32)  # the last is constant
LABELS = np.arange(60) % 4


def seen(x, normalize):
    fed = from_arrays(x[:40], LABELS[:40], x[40:], LABELS[40:], normalize=normalize)
    return [np.asarray(fed.preprocess(part.x)) for part in (fed.train, fed.test)]


def twin(x, normalize):
    """The same in NumPy, by the 40 training examples."""
    x = x.astype(np.float64)
    train, axes = x[:40], tuple(range(x.ndim - 1))
    if normalize == "standard":
        std = train.std(axes)
        x = (x - train.mean(axes)) / np.where(std < 1e-9, 1, std)
    elif normalize == "unit" and x.max() > 200:
        x = x / 255
    elif normalize == "unit":
        span = np.ptp(train, axes)
        x = (x - train.min(axes)) / np.where(span == 0, 1, span)
    return [x[:40], x[40:]]


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("x", [IMAGES, TABLE], ids=["bytes", "floats"])
def test_inputs_equal_those_of_numpy(x, normalize):
    for ours, theirs in zip(seen(x, normalize), twin(x, normalize), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    if normalize == "none" and x is TABLE:
        np.testing.assert_array_equal(np.concatenate(seen(x, normalize)), x)


TIMES = np.stack([1.7e9 + 1800 * np.random.default_rng(2).random(60), np.arange(60) % 7, np.full(60, 1.7e9)], 1)
"""Seconds since 1970 in half an hour, of which float32 keeps every 128th, a small number, and a constant."""


@pytest.mark.parametrize("given", [{}, {"normalize": "unit"}, {"mean": (1.7e9, 3, 0), "std": (500.0, 2, 1)}])
def test_what_float32_cannot_hold_is_scaled_before(given):
    with pytest.warns(
        UserWarning, match="train_x: entries 0 of the last axis vary too little for float32; they are st"
    ):
        fed = from_arrays(TIMES[:40], LABELS[:40], TIMES[40:], LABELS[40:], **given)
    mean, std = given.get("mean"), given.get("std")
    if not mean:
        train = TIMES[:40] - 1.7e9
        mean = (train.min(0) if given else train.mean(0)) + 1.7e9
        std = np.where(train[-1] == train[0], 1, np.ptp(train, axis=0) if given else train.std(0))
    for part, x in ((fed.train, TIMES[:40]), (fed.test, TIMES[40:])):
        np.testing.assert_allclose(fed.preprocess(part.x), (x - mean) / std, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "normalize", "message"),
    [
        (TIMES.astype(np.float32), "standard", "float32; float32 has rounded them already: give float64"),
        (TIMES, "none", "float32; it rounds them: centre and scale them before"),
    ],
)
def test_what_float32_has_rounded_is_warned_of(x, normalize, message):
    with pytest.warns(UserWarning, match=message):
        seen(x, normalize)


NUMBERS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=20).map(np.float32))
@settings(max_examples=30, deadline=None)
def test_unit_reaches_both_ends_and_no_further(x):
    y = np.zeros(len(x), int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers of which float32 keeps a few alone
        fed = from_arrays(x, y, x, y, normalize="unit")
    inputs = np.asarray(fed.preprocess(fed.train.x))
    if x.min() >= 0 and x.max() <= 1:
        np.testing.assert_array_equal(inputs, x)
    else:
        np.testing.assert_array_equal(inputs.min(axis=0), 0)
        np.testing.assert_allclose(inputs.max(axis=0), x.max(axis=0) > x.min(axis=0), rtol=1e-6)


def test_a_subnormal_span_is_that_of_a_constant():
    x = np.float32([[0.0, 0.0], [2.0, 1.4e-45]])
    inputs = np.asarray(from_arrays(x, np.zeros(2, int), x, np.zeros(2, int), normalize="unit").preprocess(x))
    np.testing.assert_array_equal(inputs, [[0, 0], [1, 0]])


def test_standard_is_the_default_and_the_published_statistics():
    assert load("digits", normalize="standard").mean == load("digits").mean == (0.3052,)
    assert from_arrays(TABLE, LABELS, TABLE, LABELS).mean == statistics(TABLE)[0]


@pytest.mark.parametrize(("normalize", "largest"), [("unit", 1.0), ("none", 255.0)])
def test_load_and_the_validation_split_agree(normalize, largest):
    fed = load("digits", normalize=normalize, validation_fraction=0.2)
    for part in (fed.train, fed.validation, fed.test):
        np.testing.assert_allclose(fed.preprocess(part.x), part.x * (largest / 255), rtol=1e-6)
    assert partition.iid(fed, 3).std == fed.std  # and so does what is made of it
    assert synthetic(normalize=normalize).std == load("synthetic", normalize=normalize).std


def test_data_sets_without_numbers_refuse_to_be_scaled(monkeypatch):
    tokens = np.zeros((4, 5), np.int8)
    fed = from_arrays(tokens, LABELS[:4], tokens, LABELS[:4])
    source = loading.SOURCES["shakespeare"]._replace(load=lambda _: fed)
    monkeypatch.setattr(loading, "SOURCES", {**loading.SOURCES, "shakespeare": source})
    assert load("shakespeare").train.x is fed.train.x
    for build in (
        lambda: load("shakespeare", normalize="unit"),
        lambda: from_arrays(tokens, LABELS[:4], tokens, LABELS[:4], normalize="unit"),
    ):
        with pytest.raises(ValueError, match=r"^normalize='unit': must be 'standard' for tokens, .*$"):
            build()


def test_statistics_of_ones_own_exclude_normalize():
    with pytest.raises(ValueError, match=r"normalize='unit': must be 'standard' where mean or std are given"):
        from_arrays(TABLE, LABELS, TABLE, LABELS, mean=(0.0,), normalize="unit")
    with pytest.raises(ValueError, match=r"normalize='minmax': must be one of standard, unit, none"):
        from_arrays(TABLE, LABELS, TABLE, LABELS, normalize="minmax")
