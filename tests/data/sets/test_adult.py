import gzip
import hashlib
import lzma
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.data import load
from fedjax_drag.data.sets import adult, adult_bins

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
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
SMALL = adult.ADULT._replace(sha256={name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()})
ANY = adult.ADULT._replace(sha256=dict.fromkeys(FILES, None))
"""Accepts any content."""


def write(folder, files=FILES, kind=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}{kind}").write_bytes(PACK[kind](data))
    return folder


@pytest.mark.parametrize("where", ["", "adult"])
@pytest.mark.parametrize("kind", PACK)
def test_columns_become_numbers(tmp_path, where, kind):
    write(tmp_path / where, kind=kind)
    fed = adult.load_adult(SMALL, tmp_path)
    names = adult.columns(SMALL, tmp_path)
    assert names[:6] == adult.NUMERIC
    assert names[6:9] == ("workclass=?", "workclass=Private", "workclass=State-gov")
    assert [name.split("=")[0] for name in names[6:]] == sorted(
        (name.split("=")[0] for name in names[6:]), key=adult.CATEGORICAL.index
    )
    assert (fed.name, fed.num_classes, fed.input_shape, fed.mean, fed.std) == ("adult", 2, (22,), (0.0,), (1.0,))
    assert len(names) == 22
    assert fed.train.x.dtype == np.float32
    assert fed.train.y.tolist() == [0, 1, 0]
    assert fed.test.y.tolist() == [0, 1]
    ages = np.array([39, 50, 38, 25, 38.0])
    np.testing.assert_allclose(
        np.concatenate([fed.train.x, fed.test.x])[:, 0], (ages - ages[:3].mean()) / ages[:3].std(), rtol=1e-6
    )
    np.testing.assert_array_equal(fed.train.x[:, 4], 0)  # a constant column, capital-loss

    def words(row):
        assert set(row[6:]) <= {0, 1}
        return [name for name, value in zip(names[6:], row[6:], strict=True) if value]

    assert words(fed.train.x[1]) == [
        *("workclass=?", "education=Bachelors", "marital-status=Divorced", "occupation=Exec-managerial"),
        *("relationship=Husband", "race=White", "sex=Male", "native-country=Peru"),
    ]
    # Of words that are not among the training rows there is nothing.
    assert words(fed.test.x[0]) == [
        "workclass=Private",
        "marital-status=Never-married",
        "sex=Male",
        "native-country=Cuba",
    ]


def test_numeric_columns_are_scaled_by_the_training_rows(tmp_path):
    write(tmp_path)
    raw = np.array([[39, 77516, 13, 2174, 0, 40], [50, 83311, 13, 0, 0, 13], [38, 215646, 9, 0, 0, 40.0]])
    raw_test = np.array([[25, 226802, 7, 0, 0, 40], [38, 77516, 9, 0, 0, 50.0]])
    low, span = raw.min(axis=0), np.where(np.ptp(raw, axis=0) == 0, 1, np.ptp(raw, axis=0))
    standard = adult.load_adult(SMALL, tmp_path)
    for normalize, scaled in (("unit", lambda numbers: (numbers - low) / span), ("none", lambda numbers: numbers)):
        fed = adult.load_adult(SMALL, tmp_path, normalize=normalize)
        for part, numbers, words in ((fed.train, raw, standard.train.x), (fed.test, raw_test, standard.test.x)):
            seen = np.asarray(fed.preprocess(part.x))
            np.testing.assert_allclose(seen[:, :6], scaled(numbers), rtol=1e-6)
            np.testing.assert_array_equal(seen[:, 6:], words[:, 6:])
    # The cache keeps each form for itself.
    np.testing.assert_array_equal(adult.load_adult(SMALL, tmp_path).train.x, standard.train.x)


def test_bins_are_columns_of_0_and_1(tmp_path):
    write(tmp_path)
    fed = adult.load_adult(SMALL, tmp_path, features="bins")
    names = adult.columns(SMALL, tmp_path, features="bins")
    assert (fed.input_shape, len(names), len(set(names))) == ((123,), 123, 123)
    assert set(np.unique(fed.train.x)) == {0, 1}

    def entries(row):
        return [name for name, value in zip(names, row, strict=True) if value]

    # Fifths of the ages 38, 39, 50 are 38.4, 38.8, 41.2, 45.6; of the gains 0, 0, 2174 the half is 0, the smallest.
    assert entries(fed.train.x[0]) == [
        *("38.8<=age<41.2", "workclass=State-gov", "fnlwgt<79834", "education=Bachelors", "13<=education-num<inf"),
        *("marital-status=Never-married", "occupation=Adm-clerical", "relationship=Unmarried", "race=White"),
        *("sex=Male", "2174<=capital-gain", "capital-loss<inf", "40<=hours-per-week<inf", "native-country=Cuba"),
    ]
    assert not any(name.startswith("workclass=") for name in entries(fed.train.x[1]))  # which is ?
    assert "age<38.4" in entries(fed.test.x[0])  # 25, below all training rows
    for normalize in ("unit", "none"):
        again = adult.load_adult(SMALL, tmp_path, "bins", normalize)
        np.testing.assert_array_equal(again.preprocess(again.train.x), fed.train.x)


@given(values=st.lists(st.integers(0, 8), min_size=1, max_size=40), num_bins=st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_cut_points_rise_through_the_quantiles(values, num_bins):
    values = np.array(values, np.float64)
    cuts = adult_bins.cut_points(values, num_bins)
    before = values.min()
    for cut, quantile in zip(cuts, np.quantile(values, np.arange(1, num_bins) / num_bins), strict=True):
        assert cut == quantile if quantile > before else cut == min([v for v in values if v > before], default=np.inf)
        before = cut


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("39, ", "39.5, ", r"line 1: age '39\.5': must be a whole number of at most 9 digits"),
        ("38, ", "?, ", r"line 3: age '\?'"),
        ("2174", "-2174", "line 1: capital-gain '-2174'"),
        ("2174", "9" * 10, "line 1: capital-gain"),
        ("2174", "\u00b2", "line 1: capital-gain"),
        (", >50K", "", "line 2: 14 cells: must be 15"),
        (", >50K", ", >50K, 1", "line 2: 16 cells: must be 15"),
        (">50K", ">60K", "line 2: label '>60K': must be one of <=50K, >50K"),
        ("Cuba", "", "line 1: native-country '': must be a word of 1 to 99 characters"),
        ("Cuba", "x" * 100, "line 1: native-country 'x{40}': must be a word"),
        ("Cuba", "x" * 200_000, "line 1: field larger than field limit"),
        (TRAIN, "", "no rows"),
        (TRAIN, "|comment\n", "no rows"),
        (TRAIN, "<html>", "line 1: 1 cells"),
        (TRAIN, "\0", "line 1: "),
        (TRAIN, '"', "line 1: 1 cells"),
    ],
)
def test_wrong_rows_are_refused_in_one_line(tmp_path, old, new, message):
    data = TRAIN.replace(old, new, 1).encode("latin-1")
    with pytest.raises(ValueError, match=f"{tmp_path}/adult.data: {message}") as error:
        adult.load_adult(SMALL, write(tmp_path, FILES | {"adult.data": data}))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_other_files_are_refused(tmp_path):
    data = TRAIN.replace("39", "40").encode()
    with pytest.raises(ValueError, match=r"adult\.data: not the published file of adult: SHA-256"):
        adult.load_adult(SMALL, write(tmp_path, FILES | {"adult.data": data}))
    with pytest.raises(FileNotFoundError, match=r"adult: not found .* get adult\.data and adult\.test"):
        adult.load_adult(data_dir=tmp_path / "nothing")


def test_unknown_features_and_scales_are_refused():
    with pytest.raises(ValueError, match=r"features='a9a': must be one of columns, bins"):
        load("adult", features="a9a")
    with pytest.raises(ValueError, match=r"normalize='minmax': must be one of standard, unit, none"):
        load("adult", normalize="minmax")
    with pytest.raises(ValueError, match=r"features='bins': must be left out: digits has its inputs in one form"):
        load("digits", features="bins")


@pytest.mark.thorough
def test_bins_of_the_published_files_are_those_of_a9a(real):
    """The checksums are of LIBSVM's a9a and a9a.t, read into dense rows of bytes."""
    fed = real(lambda: load("adult", features="bins"))
    assert (fed.train.x.shape, fed.test.x.shape) == ((32_561, 123), (16_281, 123))
    checksums = [zlib.crc32(part.x.astype(np.uint8).tobytes()) for part in (fed.train, fed.test)]
    assert checksums == [0x1401DBF0, 0xBBEE054C]
    per_column = [adult_bins.BINS.get(name) or len(adult_bins.WORDS[name]) for name in adult._COLUMNS]
    assert per_column == [5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41]


def test_published_files(real):
    fed = real(adult.load_adult)
    assert fed.train.x.shape == (32_561, 108)
    assert fed.test.x.shape == (16_281, 108)
    np.testing.assert_array_equal(np.bincount(fed.train.y), [24_720, 7_841])
    np.testing.assert_array_equal(np.bincount(fed.test.y), [12_435, 3_846])
    numbers = fed.train.x[:, :6].astype(np.float64)
    np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(numbers.std(axis=0), 1, atol=1e-6)
    for part in (fed.train, fed.test):
        np.testing.assert_array_equal(part.x[:, 6:].sum(axis=1), 8)  # no word is only in the test file
    names = real(adult.columns)
    per_column = [sum(name.startswith(f"{column}=") for name in names) for column in adult.CATEGORICAL]
    assert per_column == [9, 16, 7, 15, 6, 5, 2, 42]
    share = fed.train.x[:, names.index("workclass=?")].mean()
    np.testing.assert_allclose(share, 1836 / 32_561, rtol=1e-5)
