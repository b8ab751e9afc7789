"""EMNIST: handwritten digits and letters in the format of MNIST, in six splits."""

import os

import numpy as np

from fedjax_drag.data.dataset import FederatedDataset, make
from fedjax_drag.data.formats.files import IdxDataset, read_parts

_FOLDERS = ("emnist", "emnist/gzip", "gzip", "EMNIST/raw", "EMNIST/raw/gzip")
_ADVICE = "get gzip.zip of EMNIST from NIST, unpack it and"
_SHA256 = {
    "emnist-bymerge-test-images-idx3-ubyte": "68b2763a83f2661dace0df055282a50f4d4aea3dab401f2a04e2e7e2c5bc8590",
    "emnist-bymerge-test-labels-idx1-ubyte": "17b8bd69b4e584fa425d7268b1f58882ef4bf7f241a6116fa606bb6d36839b5a",
}


def _files(split: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"emnist-{split}-{part}-{kind}" for part in parts for kind in kinds)


def _split(split: str, num_classes: int, mean: float, std: float, first_label: int = 0) -> IdxDataset:
    files = _files(split, ("train", "test"))
    sha256 = {file: _SHA256[file] for file in files if file in _SHA256}
    return IdxDataset(
        f"emnist_{split}", _FOLDERS, num_classes, mean, std, sha256, _ADVICE, files, first_label, transposed=True
    )


EMNIST: dict[str, IdxDataset] = {
    record.name: record
    for record in (
        _split("byclass", 62, 0.1736, 0.3317),
        _split("bymerge", 47, 0.1736, 0.3317),
        _split("balanced", 47, 0.1751, 0.3332),
        _split("letters", 26, 0.1722, 0.3309, first_label=1),
        _split("digits", 10, 0.1733, 0.3317),
        _split("mnist", 10, 0.1733, 0.3317),
    )
}
"""The published splits by name, ``emnist_byclass`` to ``emnist_mnist``, for :func:`load_idx` (Cohen et al., 2017).

ByClass has 10 digits, 26 upper and 26 lower case letters; ByMerge and Balanced merge upper and lower case of
the 15 letters that look alike in both; Letters merges all, and its labels 1 to 26 become 0 to 25. Images are transposed
in the files and upright here.
"""

BYMERGE_TEST = EMNIST["emnist_bymerge"]._replace(
    name="emnist_bymerge_test", files=_files("bymerge", ("test",)), sha256=_SHA256
)
"""The test split of ByMerge alone: 116,323 images of the 47 classes of EMNIST Balanced, unbalanced."""


def load_bymerge_test(
    dataset: IdxDataset = BYMERGE_TEST, data_dir: str | os.PathLike[str] | None = None
) -> FederatedDataset:
    """A data set of 47 classes from the test split of EMNIST ByMerge, in place of EMNIST Balanced.

    Each class is split at random, always in the same way, into a seventh for testing (to the nearest integer) and the
    rest for training: the proportion of EMNIST Balanced. Both keep the order of the file. Accuracies
    are not comparable with EMNIST Balanced: classes have between 415 and 6,400 images.

    Args:
      dataset: which pair of files.
      data_dir: as in :func:`load_idx`.

    Returns:
      99,707 training and 16,616 test images uint8 ``[28, 28, 1]``, labels int32, unpartitioned.

    Raises:
      FileNotFoundError: files are missing; the one line says where they were searched for and what to do.
      ValueError: a file is damaged or is not the published one; the one line names it.
    """
    [(x, y)] = read_parts(dataset, data_dir)
    test = _one_in(7, y)
    statistics = (dataset.mean,), (dataset.std,)
    return make(dataset.name, (x[~test], y[~test]), (x[test], y[test]), dataset.num_classes, *statistics)


def _one_in(parts: int, y: np.ndarray, seed: int = 0) -> np.ndarray:
    """Chooses one in ``parts`` examples of each class at random, ``[N]`` bool.

    Drawn from the raw bits of a generator, whose stream NumPy guarantees not to change.
    """
    order = np.lexsort((np.random.PCG64(seed).random_raw(len(y)), y))  # by class, and random within
    counts = np.bincount(y)
    rank = np.empty(len(y), np.int64)
    rank[order] = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank < np.rint(counts / parts)[y]
