"""Adult as 123 columns of 0 and 1: the columns of LIBSVM's a9a, made from the files of adult.

A numeric column is cut into bins, and a word of a categorical column has a column of its own; ``?``, for unknown, has
none. Columns are in the order of adult's files, words in that of its description, ``adult.names``.
"""

from collections.abc import Mapping

import numpy as np

BINS: Mapping[str, int] = {
    "age": 5,
    "fnlwgt": 5,
    "education-num": 5,
    "capital-gain": 2,
    "capital-loss": 2,
    "hours-per-week": 5,
}
"""Numeric columns, with the number of bins that each is cut into."""

WORDS: Mapping[str, tuple[str, ...]] = {
    column: tuple(words.split())
    for column, words in {
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
    }.items()
}
"""Categorical columns, with the words that have a column."""


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
        larger = distinct[distinct > before]
        next_larger = larger[0] if larger.size else np.inf
        before = quantile if quantile > before else next_larger
        cuts.append(before)
    return np.array(cuts)


def encode(columns: Mapping[str, np.ndarray], cuts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Rows of 0 and 1.

    Args:
      columns: of the files, in their order: numbers or words ``[N]`` by name.
      cuts: from :func:`cut_points`, by numeric column.

    Returns:
      ``[N, 123]``, float32. A word without a column is all zeros.
    """
    parts = []
    for column, values in columns.items():
        if column in cuts:
            bins = np.searchsorted(cuts[column], values, side="right")
            parts.append(bins[:, None] == np.arange(BINS[column]))
        else:
            parts.append(values[:, None] == np.array(WORDS[column]))
    return np.concatenate(parts, axis=1, dtype=np.float32)


def names(columns: Mapping[str, np.ndarray], cuts: Mapping[str, np.ndarray]) -> list[str]:
    """Names of the entries of a row that :func:`encode` makes: ``age<26``, ``26<=age<33``, ..., ``sex=Male``, ..."""
    entries: list[str] = []
    for column in columns:
        if column in cuts:
            low = ["", *(f"{cut:g}<=" for cut in cuts[column])]
            high = [*(f"<{cut:g}" for cut in cuts[column]), ""]
            entries += [f"{start}{column}{end}" for start, end in zip(low, high, strict=True)]
        else:
            entries += [f"{column}={word}" for word in WORDS[column]]
    return entries
