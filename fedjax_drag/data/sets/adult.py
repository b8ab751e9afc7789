"""Adult: whether a person in the US census of 1994 earns more than 50,000 dollars a year; tabular data."""

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset, make
from fedjax_drag.data.formats import compressed, locate
from fedjax_drag.data.formats.cache import Arrays, cached
from fedjax_drag.data.normalization import NORMALIZE, Normalize, statistics
from fedjax_drag.data.sets import adult_bins

Features = Literal["columns", "bins"]

NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
"""Columns that are numbers. They include ``fnlwgt`` (the number of people that a row represents) and
``education-num`` (an order of the column ``education``)."""

_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
)
CATEGORICAL = tuple(column for column in _COLUMNS if column not in NUMERIC)
"""Columns with one of a few words; ``?``, for unknown, counts as a word."""

_LABELS = ("<=50K", ">50K")
_MOST = 1 << 26
"""Largest number of bytes of a file; the published ones have 4 and 2 million."""


class AdultDataset(NamedTuple):
    """A published data set in the format of adult.

    Attributes:
      name: its name here.
      folders: names of folders below a searched folder in which its files may be.
      sha256: of the uncompressed content, by official file name: for training and for testing.
      advice: how to get it.
    """

    name: str
    folders: tuple[str, ...]
    sha256: Mapping[str, str]
    advice: str


ADULT = AdultDataset(
    "adult",
    ("adult", "Adult"),
    {
        "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    },
    "get adult.data and adult.test from the UCI repository and",
)
"""32,561 people for training, 16,281 for testing (Becker and Kohavi, 1996)."""


def load_adult(
    dataset: AdultDataset = ADULT,
    data_dir: str | os.PathLike[str] | None = None,
    features: Features = "columns",
    normalize: Normalize = "standard",
) -> FederatedDataset:
    """Finds, reads and verifies adult, and turns its columns into numbers.

    With ``features="columns"``, the six numeric columns come first, with mean 0 and variance 1 over the training rows;
    then the eight categorical ones, with a 0 or 1 for each word that occurs in the training rows, in alphabetical
    order. A word that occurs only in the test rows is all zeros.

    With ``features="bins"``, all 123 entries are 0 or 1: they are those of LIBSVM's a9a, on which NIID-Bench trains. A
    numeric column is cut at quantiles of the training rows as in
    :func:`~fedjax_drag.data.sets.adult_bins.cut_points` (capital gains and losses: 0, and above), and ``?`` is all
    zeros. LIBSVM's page does not print the cut points; these give every entry of its files a9a and a9a.t.

    :func:`columns` names the entries.

    Args:
      dataset: which.
      data_dir: as in :func:`fedjax_drag.data.formats.files.load_idx`.
      features: ``"columns"`` or ``"bins"``.
      normalize: what becomes of the six numeric columns: ``"standard"``, as above; ``"unit"``, scaled so that the
        training rows are in [0, 1] and reach both ends, while test rows may lie outside; ``"none"``, as in the files.
        Entries that are 0 or 1 stay, so that it changes nothing with ``features="bins"``.

    Returns:
      Rows float32 ``[108]`` or ``[123]``, labels int32 (1: more than 50,000 dollars), unpartitioned.

    Raises:
      FileNotFoundError: files are missing; the one line says where they were searched for and what to do.
      ValueError: a file is damaged or is not the published one; the one line names it. Or an unknown value of an
        argument.

    References:
      Platt, Fast training of support vector machines using sequential minimal optimization, 1998, has the bins. Chang
      and Lin, LIBSVM: A library for support vector machines, 2011, distribute them. Li et al., Federated learning on
      non-IID data silos: An experimental study, 2022 (NIID-Bench).
    """
    checks.one_of("features", features, ("columns", "bins"))
    checks.one_of("normalize", normalize, NORMALIZE)
    arrays = _arrays(dataset, data_dir, features, normalize)
    train, test = ((arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test"))
    return make(dataset.name, train, test, len(_LABELS), (0.0,), (1.0,))


def columns(
    dataset: AdultDataset = ADULT, data_dir: str | os.PathLike[str] | None = None, features: Features = "columns"
) -> tuple[str, ...]:
    """Names of the entries of a row that :func:`load_adult` returns: ``age``, ..., ``sex=Male``, ..."""
    return tuple(_arrays(dataset, data_dir, features, "standard")["columns"].tolist())


def find(dataset: AdultDataset, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Its two files; FileNotFoundError as in :func:`load_adult`."""
    return locate.find(dataset.name, tuple(dataset.sha256), dataset.folders, data_dir, dataset.advice)


def _arrays(
    dataset: AdultDataset, data_dir: str | os.PathLike[str] | None, features: Features, normalize: Normalize
) -> Arrays:
    paths = find(dataset, data_dir)

    def read() -> Arrays:
        train, test = (_read(dataset, path) for path in paths)
        return _binned(train, test) if features == "bins" else _encode(train, test, normalize)

    how = ["bins"] if features == "bins" else [] if normalize == "standard" else [normalize]
    return cached(dataset.name, paths, read, version=[1, dataset, *how])


class _Table(NamedTuple):
    numbers: np.ndarray  # [N, 6] float64
    words: np.ndarray  # [N, 8] text
    labels: np.ndarray  # [N] int32


def _read(dataset: AdultDataset, path: Path) -> _Table:
    """The rows of a file; its structure is checked first, since its errors are more specific than a wrong checksum."""
    content = compressed.read(path, limit=_MOST)
    reader = csv.reader(io.StringIO(content.decode("latin-1")), skipinitialspace=True, quoting=csv.QUOTE_NONE)
    try:
        rows = [_row(cells) for cells in reader if cells and not cells[0].startswith("|")]  # else empty, or a comment
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path}: line {reader.line_num}: {error}; get it again") from error
    if not rows:
        raise ValueError(f"{path}: no rows; get it again")
    compressed.verify(dataset.name, path, dataset.sha256, content)
    numbers, words, labels = zip(*rows, strict=True)
    return _Table(np.array(numbers, np.float64), np.array(words), np.array(labels, np.int32))


def _row(cells: list[str]) -> tuple[list[int], list[str], int]:
    """Numbers, words and label of one person."""
    if len(cells) != len(_COLUMNS) + 1:
        raise ValueError(f"{len(cells)} cells: must be {len(_COLUMNS) + 1}")
    row, label = dict(zip(_COLUMNS, cells, strict=False)), cells[-1].removesuffix(".")  # which adult.test has
    for column in NUMERIC:
        if not (row[column].isdecimal() and len(row[column]) < 10):
            raise ValueError(f"{column} {row[column][:40]!r}: must be a whole number of at most 9 digits")
    for column in CATEGORICAL:
        if not 0 < len(row[column]) < 100:
            raise ValueError(f"{column} {row[column][:40]!r}: must be a word of 1 to 99 characters")
    if label not in _LABELS:
        raise ValueError(f"label {label[:40]!r}: must be one of {', '.join(_LABELS)}")
    return [int(row[c]) for c in NUMERIC], [row[c] for c in CATEGORICAL], _LABELS.index(label)


def _encode(train: _Table, test: _Table, normalize: Normalize) -> Arrays:
    """Both parts as numbers, by statistics and words of the training rows alone."""
    shift, scale = statistics(train.numbers, normalize)
    vocabularies = [np.unique(words) for words in train.words.T]
    arrays = {
        "columns": np.array(
            [*NUMERIC, *(f"{c}={w}" for c, of in zip(CATEGORICAL, vocabularies, strict=True) for w in of)]
        )
    }
    for part, rows in (("train", train), ("test", test)):
        one_hot = [words[:, None] == of for words, of in zip(rows.words.T, vocabularies, strict=True)]
        arrays[f"{part}_x"] = np.concatenate([(rows.numbers - shift) / scale, *one_hot], axis=1, dtype=np.float32)
        arrays[f"{part}_y"] = rows.labels
    return arrays


def _binned(train: _Table, test: _Table) -> Arrays:
    """Both parts as columns of 0 and 1, by quantiles of the training rows alone."""
    by_column = _by_column(train)
    cuts = {column: adult_bins.cut_points(by_column[column], number) for column, number in adult_bins.BINS.items()}
    arrays = {"columns": np.array(adult_bins.names(by_column, cuts))}
    for part, rows in (("train", train), ("test", test)):
        arrays[f"{part}_x"] = adult_bins.encode(_by_column(rows), cuts)
        arrays[f"{part}_y"] = rows.labels
    return arrays


def _by_column(rows: _Table) -> dict[str, np.ndarray]:
    """Numbers and words in the order of the files."""
    values = dict(zip(NUMERIC, rows.numbers.T, strict=True)) | dict(zip(CATEGORICAL, rows.words.T, strict=True))
    return {column: values[column] for column in _COLUMNS}
