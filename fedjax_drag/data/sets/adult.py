"""Adult: whether a person in the US census of 1994 earns more than 50,000 dollars a year; tabular data."""

from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset, make
from fedjax_drag.data.formats import compressed, locate
from fedjax_drag.data.normalization import NORMALIZE, Normalize, statistics

Features = Literal["columns", "bins"]
Columns = dict[str, np.ndarray]
"""Columns ``[N]`` of the training or the test rows by name."""

BINS = {"age": 5, "fnlwgt": 5, "education-num": 5, "capital-gain": 2, "capital-loss": 2, "hours-per-week": 5}
"""Columns that are numbers, and into how many bins each is cut. They include ``fnlwgt`` (the number of people that a
row represents) and ``education-num`` (an order of the column ``education``)."""

WORDS = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
    "1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
    "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland "
    "France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
    "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
"""Columns with one of a few words, in the order of the description ``adult.names``; ``?``, for unknown, is none."""

_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
)
_CHECKSUMS = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
_MOST = 1 << 26
"""Largest number of bytes of a file; the published ones have 4 and 2 million."""


def find(data_dir: locate.Place) -> list[Path]:
    """The files for training and for testing; FileNotFoundError as in :func:`load_adult`."""
    advice = "get adult.data and adult.test from the UCI repository and"
    return locate.find("adult", (tuple(_CHECKSUMS),), ("adult", "Adult"), data_dir, advice)


def load_adult(
    data_dir: locate.Place = None, features: Features = "columns", normalize: Normalize = "standard"
) -> FederatedDataset:
    """Finds, reads and verifies adult, and turns its columns into numbers.

    With ``features="columns"``, the six numeric columns come first, with mean 0 and variance 1 over the training rows;
    then the eight categorical ones, with a 0 or 1 for each word that occurs in the training rows (``?`` counts as one),
    in alphabetical order. A word that occurs only in the test rows is all zeros.

    With ``features="bins"``, all 123 entries are 0 or 1: they are those of LIBSVM's a9a, on which NIID-Bench trains. A
    numeric column is cut at quantiles of the training rows as in :func:`cut_points` (capital gains and losses: 0, and
    above), and ``?`` is all zeros. LIBSVM's page does not print the cut points; these give every entry of its files
    a9a and a9a.t.

    :func:`encode` names the entries.

    Args:
      data_dir: as in :meth:`fedjax_drag.data.sets.published.Published.load`.
      features: ``"columns"`` or ``"bins"``.
      normalize: what becomes of the six numeric columns: ``"standard"``, as above; ``"unit"``, scaled so that the
        training rows are in [0, 1] and reach both ends, while test rows may lie outside; ``"none"``, as in the files.
        Entries that are 0 or 1 stay, so that it changes nothing with ``features="bins"``.

    Returns:
      32,561 rows for training and 16,281 for testing (Becker and Kohavi, 1996), float32 ``[108]`` or ``[123]``; labels
      int32 (1: more than 50,000 dollars), unpartitioned.

    Raises:
      FileNotFoundError: files are missing; the one line says where they were searched for and what to do.
      ValueError: a file is not the published one; the one line names it. Or an unknown value of an argument.

    References:
      Platt, Fast training of support vector machines using sequential minimal optimization, 1998, has the bins. Chang
      and Lin, LIBSVM: A library for support vector machines, 2011, distribute them. Li et al., Federated learning on
      non-IID data silos: An experimental study, 2022 (NIID-Bench).
    """
    checks.one_of("features", features, ("columns", "bins"))
    parts = _encoded(data_dir, features, normalize)
    train, test = ((_stacked(x), np.strings.startswith(rows["label"], ">").astype(np.int32)) for rows, x in parts)
    return make("adult", train, test, 2)


def load_hours(data_dir: locate.Place = None, normalize: Normalize = "standard") -> FederatedDataset:
    """Adult as a regression: how many hours a week a person works.

    Inputs are the other columns as in :func:`load_adult` with ``features="columns"``, without the income.

    Args:
      data_dir: as in :func:`load_adult`.
      normalize: what becomes of the numeric columns, that of the targets among them: by default they have mean 0 and
        variance 1 over the training rows; with ``"none"`` targets are hours, 1 to 99.

    Returns:
      32,561 rows for training and 16,281 for testing, float32 ``[107]``, targets float32 ``[N]``, unpartitioned.

    Raises:
      FileNotFoundError: as :func:`load_adult`.
      ValueError: as :func:`load_adult`.
    """
    hours = [(x.pop("hours-per-week"), x) for _, x in _encoded(data_dir, "columns", normalize)]
    train, test = ((_stacked(x), y.astype(np.float32)) for y, x in hours)
    return make("adult_hours", train, test, 0)


def _encoded(data_dir: locate.Place, features: Features, normalize: Normalize) -> list[tuple[Columns, Columns]]:
    """The training and the test rows: their columns, and what a model sees of them."""
    checks.one_of("normalize", normalize, NORMALIZE)
    parts = [*map(_read, find(data_dir))]
    return [(rows, encode(parts[0], rows, features, normalize)) for rows in parts]


def _stacked(entries: Columns) -> np.ndarray:
    return np.stack([*entries.values()], axis=1, dtype=np.float32)


def _read(path: Path) -> Columns:
    """The columns of a file, of which only the published content is parsed."""
    content = compressed.read(path, _MOST)
    compressed.verify("adult", path, _CHECKSUMS, content)
    rows = [line.split(", ") for line in content.decode().splitlines() if "," in line]
    table = dict(zip((*_COLUMNS, "label"), np.array(rows).T, strict=True))
    return table | {column: table[column].astype(np.float64) for column in BINS}


def encode(train: Columns, rows: Columns, features: Features, normalize: Normalize) -> Columns:
    """What a model sees of rows, by statistics and words of the training rows alone.

    Args:
      train: columns of the training rows.
      rows: columns of the training or the test rows.
      features: as in :func:`load_adult`.
      normalize: as in :func:`load_adult`.

    Returns:
      The entries by name: ``age``, ..., ``sex=Male``, ...; with bins ``age<26``, ``26<=age<33``, ..., ``sex=Male``, ...
    """
    entries = {}
    if features == "columns":
        numbers = np.stack([train[column] for column in BINS], axis=1)
        shift, scale = (np.broadcast_to(value, len(BINS)) for value in statistics(numbers, normalize))
        entries = {c: (rows[c] - low) / span for c, low, span in zip(BINS, shift, scale, strict=True)}
    for column in _COLUMNS:
        if column in WORDS:
            words = WORDS[column].split() if features == "bins" else sorted(set(train[column].tolist()))
            entries |= {f"{column}={word}": rows[column] == word for word in words}
        elif features == "bins":
            for low, high in pairwise((-np.inf, *cut_points(train[column], BINS[column]), np.inf)):
                name = f"{low:g}<={column}<{high:g}".removeprefix("-inf<=").removesuffix("<inf")
                entries[name] = (rows[column] >= low) & (rows[column] < high)
    return entries


def cut_points(values: np.ndarray, num_bins: int) -> np.ndarray:
    """The smallest value of the second and every later bin of a numeric column.

    They are the quantiles ``1 / num_bins, 2 / num_bins, ...``, where frequent values make several of them equal. One
    that is not above the cut before it, or above the smallest value, is moved to the next larger value.

    Args:
      values: of the training rows, ``[N]``.
      num_bins: K, >= 2.

    Returns:
      ``[K - 1]``, increasing; infinite once no larger value is left, so that the last bins are empty.
    """
    distinct = np.unique(values)
    cuts, before = [], distinct[0]
    for quantile in np.quantile(values, np.arange(1, num_bins) / num_bins):
        next_larger = min(distinct[distinct > before], default=np.inf)
        before = quantile if quantile > before else next_larger
        cuts.append(before)
    return np.array(cuts)
