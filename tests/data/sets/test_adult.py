import zlib

import numpy as np
import pytest
from data_files import PACK, digests, refused, write
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.data import load
from fedjax_drag.data.sets import adult

MAN = "Unmarried, White, Male"
TRAIN = f"""39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, {MAN}, 2174, 0, 40, Cuba, <=50K
50, ?, 83311, Bachelors, 13, Divorced, Exec-managerial, Husband, White, Male, 0, 0, 13, Peru, >50K
38, Private, 215646, HS-grad, 9, Divorced, Handlers-cleaners, {MAN}, 0, 0, 40, Cuba, <=50K

"""
TEST = """|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, Cuba, <=50K.
38, ?, 77516, HS-grad, 9, Divorced, Adm-clerical, Husband, White, Male, 0, 0, 50, Peru, >50K.
"""
FILES = {"adult.data": TRAIN.encode(), "adult.test": TEST.encode()}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The folder of the files above, which count as the published ones."""
    monkeypatch.setattr(adult, "_CHECKSUMS", digests(FILES))
    return write(tmp_path, FILES)


def entries(folder, features):
    """Names of the entries of a row."""
    train = adult._read(folder / "adult.data")
    return list(adult.encode(train, train, features, "standard"))


def words(row, names):
    return [name for name, value in zip(names, row, strict=True) if value == 1]


@pytest.mark.parametrize("where", ["", "adult"])
@pytest.mark.parametrize("kind", PACK)
def test_files_are_found(small, tmp_path, where, kind):
    write(tmp_path / "other" / where, FILES, kind)
    np.testing.assert_array_equal(adult.load_adult(tmp_path / "other").train.x, adult.load_adult(small).train.x)


def test_columns_become_numbers(small):
    fed, names = adult.load_adult(small), entries(small, "columns")
    assert names[:6] == list(adult.BINS)
    assert names[6:9] == ["workclass=?", "workclass=Private", "workclass=State-gov"]
    columns = [name.split("=")[0] for name in names[6:]]
    assert columns == sorted(columns, key=list(adult.WORDS).index)
    assert (fed.name, fed.num_classes, fed.input_shape, fed.mean, fed.std) == ("adult", 2, (22,), (0.0,), (1.0,))
    assert fed.train.x.dtype == np.float32
    assert fed.train.y.tolist() == [0, 1, 0]
    assert fed.test.y.tolist() == [0, 1]
    assert set(np.unique(fed.train.x[:, 6:])) == {0, 1}
    assert words(fed.train.x[1, 6:], names[6:]) == [
        *("workclass=?", "education=Bachelors", "marital-status=Divorced", "occupation=Exec-managerial"),
        *("relationship=Husband", "race=White", "sex=Male", "native-country=Peru"),
    ]
    # Of words that are not among the training rows there is nothing.
    known = ["workclass=Private", "marital-status=Never-married", "sex=Male", "native-country=Cuba"]
    assert words(fed.test.x[0, 6:], names[6:]) == known


def test_numeric_columns_are_scaled_by_the_training_rows(small):
    raw = np.array([[39, 77516, 13, 2174, 0, 40], [50, 83311, 13, 0, 0, 13], [38, 215646, 9, 0, 0, 40.0]])
    raw_test = np.array([[25, 226802, 7, 0, 0, 40], [38, 77516, 9, 0, 0, 50.0]])
    nonzero = lambda spread: np.where(spread == 0, 1, spread)  # capital-loss is constant
    low, span = raw.min(axis=0), nonzero(np.ptp(raw, axis=0))
    mean, std = raw.mean(axis=0), nonzero(raw.std(axis=0))
    standard = adult.load_adult(small)
    for normalize, scaled in (
        ("standard", lambda numbers: (numbers - mean) / std),
        ("unit", lambda numbers: (numbers - low) / span),
        ("none", lambda numbers: numbers),
    ):
        fed = adult.load_adult(small, normalize=normalize)
        for part, numbers, own in ((fed.train, raw, standard.train.x), (fed.test, raw_test, standard.test.x)):
            seen = np.asarray(fed.preprocess(part.x))
            np.testing.assert_allclose(seen[:, :6], scaled(numbers), rtol=1e-6)
            np.testing.assert_array_equal(seen[:, 6:], own[:, 6:])


def test_bins_are_columns_of_0_and_1(small):
    fed, names = adult.load_adult(small, features="bins"), entries(small, "bins")
    assert (fed.input_shape, len(names), len(set(names))) == ((123,), 123, 123)
    assert set(np.unique(fed.train.x)) == {0, 1}
    # Fifths of the ages 38, 39, 50 are 38.4, 38.8, 41.2, 45.6; of the gains 0, 0, 2174 the half is 0, the smallest.
    assert words(fed.train.x[0], names) == [
        *("38.8<=age<41.2", "workclass=State-gov", "fnlwgt<79834", "education=Bachelors", "13<=education-num"),
        *("marital-status=Never-married", "occupation=Adm-clerical", "relationship=Unmarried", "race=White"),
        *("sex=Male", "2174<=capital-gain", "capital-loss", "40<=hours-per-week", "native-country=Cuba"),
    ]
    assert not any(name.startswith("workclass=") for name in words(fed.train.x[1], names))  # which is ?
    assert "age<38.4" in words(fed.test.x[0], names)  # 25, below all training rows
    for normalize in ("unit", "none"):
        again = adult.load_adult(small, "bins", normalize)
        np.testing.assert_array_equal(again.preprocess(again.train.x), fed.train.x)


@given(values=st.lists(st.integers(0, 8), min_size=1, max_size=40), num_bins=st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_cut_points_rise_through_the_quantiles(values, num_bins):
    values = np.array(values, np.float64)
    cuts = adult.cut_points(values, num_bins)
    before = values.min()
    for cut, quantile in zip(cuts, np.quantile(values, np.arange(1, num_bins) / num_bins), strict=True):
        assert cut == quantile if quantile > before else cut == min([v for v in values if v > before], default=np.inf)
        before = cut


@pytest.mark.parametrize("normalize", ["standard", "unit", "none"])
def test_hours_are_the_column_that_the_inputs_lack(small, normalize):
    whole, names = adult.load_adult(small, normalize=normalize), entries(small, "columns")
    place = names.index("hours-per-week")
    fed = load("adult_hours", data_dir=small, normalize=normalize)
    assert (fed.name, fed.num_classes, fed.input_shape, fed.has_labels) == ("adult_hours", 0, (21,), False)
    for part, of_whole in ((fed.train, whole.train), (fed.test, whole.test)):
        np.testing.assert_array_equal(part.x, np.delete(of_whole.x, place, axis=1))
        np.testing.assert_allclose(part.y, np.asarray(whole.preprocess(of_whole.x))[:, place], rtol=1e-6)
        assert part.y.dtype == np.float32
    hours = {"standard": (31 + 27 * fed.train.y * np.sqrt(2 / 9)).tolist(), "unit": (13 + 27 * fed.train.y).tolist()}
    np.testing.assert_allclose(hours.get(normalize, fed.train.y), [40, 13, 40], rtol=1e-5)
    refused("normalize='minmax': must be one of", lambda: adult.load_hours(small, "minmax"))


def test_other_files_are_refused_in_one_line(small, tmp_path):
    for content in (TRAIN.replace("39", "40"), TRAIN + "39, State-gov\n", "", "<html>", "\0" * 99, '"' * 10**6):
        write(tmp_path, {"adult.data": content.encode()})
        refused(r"adult\.data: not the published file of adult: SHA-256", adult.load_adult, small, start=tmp_path)
    message = r"adult: not found .* get adult\.data and adult\.test"
    refused(message, adult.load_adult, tmp_path / "nothing", kind=FileNotFoundError)
    refused("features='a9a': must be one of columns, bins", lambda: load("adult", features="a9a"))
    refused("normalize='minmax': must be one of standard, unit, none", lambda: load("adult", normalize="minmax"))
    message = "features='bins': must be left out: digits has its inputs in one form"
    refused(message, lambda: load("digits", features="bins"))


@pytest.mark.thorough
def test_bins_of_the_published_files_are_those_of_a9a(real):
    """The checksums are of LIBSVM's a9a and a9a.t, read into dense rows of bytes."""
    fed = real(load, "adult", features="bins")
    assert (fed.train.x.shape, fed.test.x.shape) == ((32_561, 123), (16_281, 123))
    checksums = [zlib.crc32(part.x.astype(np.uint8).tobytes()) for part in (fed.train, fed.test)]
    assert checksums == [0x1401DBF0, 0xBBEE054C]


def test_published_files(real):
    fed = real(load, "adult")
    assert (fed.train.x.shape, fed.test.x.shape) == ((32_561, 108), (16_281, 108))
    np.testing.assert_array_equal(np.bincount(fed.train.y), [24_720, 7_841])
    np.testing.assert_array_equal(np.bincount(fed.test.y), [12_435, 3_846])
    numbers = fed.train.x[:, :6].astype(np.float64)
    np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(numbers.std(axis=0), 1, atol=1e-6)
    for part in (fed.train, fed.test):
        np.testing.assert_array_equal(part.x[:, 6:].sum(axis=1), 8)  # no word is only in the test file
    folder = adult.find(None)[0].parent
    names = entries(folder, "columns")
    per_column = [sum(name.startswith(f"{column}=") for name in names) for column in adult.WORDS]
    assert per_column == [9, 16, 7, 15, 6, 5, 2, 42]
    share = fed.train.x[:, names.index("workclass=?")].mean()
    np.testing.assert_allclose(share, 1836 / 32_561, rtol=1e-5)
    per_column = [adult.BINS.get(name) or len(adult.WORDS[name].split()) for name in adult._COLUMNS]
    assert per_column == [5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41]
