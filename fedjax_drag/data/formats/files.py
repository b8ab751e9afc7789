"""Image data sets in IDX files: MNIST and its relatives."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_drag.data.dataset import FederatedDataset, make
from fedjax_drag.data.formats import compressed, idx, locate
from fedjax_drag.data.formats.cache import Arrays, cached


class IdxDataset(NamedTuple):
    """A published data set of grey images in four IDX files.

    Attributes:
      name: its name here.
      folders: names of folders below a searched folder in which its files may be.
      num_classes: labels are 0 .. num_classes - 1.
      mean: of the training pixels, scaled to [0, 1].
      std: of the training pixels, scaled to [0, 1].
      sha256: of the uncompressed content of each file, by its official name without ``.gz``; a file without one is
        not verified.
      advice: how to get it.
      files: official names: training images and labels, test images and labels.
      first_label: the smallest label in the files, which becomes 0.
      transposed: whether rows and columns are exchanged in the files.
    """

    name: str
    folders: tuple[str, ...]
    num_classes: int
    mean: float
    std: float
    sha256: Mapping[str, str]
    advice: str
    files: tuple[str, ...] = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    first_label: int = 0
    transposed: bool = False


MNIST = IdxDataset(
    "mnist",
    ("mnist", "MNIST/raw"),
    10,
    0.1307,
    0.3081,
    {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "get its four IDX files and",
)
"""Handwritten digits, 28x28: 60,000 for training, 10,000 for testing (LeCun et al., 1998)."""

FASHION_MNIST = IdxDataset(
    "fashion_mnist",
    ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
    10,
    0.2860,
    0.3530,
    {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    "on Debian or Ubuntu: apt-get install dataset-fashion-mnist; or",
)
"""Articles of clothing, 28x28: 60,000 for training, 10,000 for testing (Xiao et al., 2017)."""


def load_idx(dataset: IdxDataset, data_dir: str | os.PathLike[str] | None = None) -> FederatedDataset:
    """Finds, reads and verifies a data set of four IDX files.

    Args:
      dataset: which.
      data_dir: the folder to search: one of ``dataset.folders`` below it, or the folder itself. By default
        the folder in the environment variable ``FEDJAX_DRAG_DATA`` is searched in the same way, and
        ``/usr/share/datasets``.

    Returns:
      Images uint8 ``[N, H, W, 1]``, labels int32, unpartitioned.

    Raises:
      FileNotFoundError: files are missing; the one line says where they were searched for and what to do.
      ValueError: a file is damaged or is not the published one; the one line names it.
    """
    train, test = read_parts(dataset, data_dir)
    return make(dataset.name, train, test, dataset.num_classes, (dataset.mean,), (dataset.std,))


def find(dataset: IdxDataset, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Its files in the order of ``dataset.files``; FileNotFoundError as in :func:`load_idx`."""
    return locate.find(dataset.name, dataset.files, dataset.folders, data_dir, dataset.advice)


def read_parts(dataset: IdxDataset, data_dir: str | os.PathLike[str] | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels of each pair of files in ``dataset.files``; see :func:`load_idx`."""
    paths = find(dataset, data_dir)
    parts = range(len(paths) // 2)

    def read() -> Arrays:
        arrays = {}
        for part in parts:
            arrays[f"x{part}"], arrays[f"y{part}"] = _read_pair(paths[2 * part], paths[2 * part + 1], dataset)
        return arrays

    arrays = cached(dataset.name, paths, read, version=[1, dataset])
    return [(arrays[f"x{part}"], arrays[f"y{part}"]) for part in parts]


def _read_pair(images_path: Path, labels_path: Path, dataset: IdxDataset) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, H, W, 1]`` uint8 and labels ``[N]`` int32, checked against each other and the checksums.

    The structure is checked first: its errors are more specific than a wrong checksum.
    """
    images, labels = idx.read(images_path, 3), idx.read(labels_path, 1)
    if len(images) != len(labels):
        raise ValueError(
            f"{labels_path}: {len(labels)} labels, but {images_path.name} beside it has {len(images)} images"
        )
    first, last = dataset.first_label, dataset.first_label + dataset.num_classes - 1
    for label in (labels.min(), labels.max()):
        if not first <= label <= last:
            raise ValueError(f"{labels_path}: label {label} found: must be in [{first}, {last}]")
    for path, values in ((images_path, images), (labels_path, labels)):
        compressed.verify(dataset.name, path, dataset.sha256, idx.header(values.shape), values.data)
    images = np.ascontiguousarray(images.transpose(0, 2, 1)) if dataset.transposed else images
    return images[..., None], labels.astype(np.int32) - first
