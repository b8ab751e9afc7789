import gzip
import hashlib
import lzma

import numpy as np
import pytest

from fedjax_drag.data.sets import adult

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
