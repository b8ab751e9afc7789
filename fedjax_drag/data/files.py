"""Data sets kept as files on this machine: where they are looked for, and how they are verified."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_drag.data import idx
from fedjax_drag.data.dataset import FederatedDataset, make

ENVIRONMENT_VARIABLE = "FEDJAX_DRAG_DATA"
_SYSTEM = Path("/usr/share/datasets")


class IdxDataset(NamedTuple):
    """A published image data set in four IDX files.

    Attributes:
      name: its name here.
      folders: names of folders it may lie in, below a place that is searched.
      num_classes: labels are 0 .. num_classes - 1.
      mean: of the training pixels, scaled to [0, 1].
      std: of the training pixels, scaled to [0, 1].
      sha256: of the uncompressed content of each file, by its official name without ``.gz``.
      advice: how to get it.
    """

    name: str
    folders: tuple[str, ...]
    num_classes: int
    mean: float
    std: float
    sha256: Mapping[str, str]
    advice: str


_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

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
      data_dir: where to look: in one of ``dataset.folders`` below it, or directly in it. By default
        the folder in the environment variable ``FEDJAX_DRAG_DATA`` is searched in the same way, and
        ``/usr/share/datasets``.

    Returns:
      Images uint8 ``[N, H, W, 1]``, labels int32, unpartitioned.

    Raises:
      FileNotFoundError: not there; the one line says where it was looked for and what to do.
      ValueError: a file is damaged or is not the published one; the one line names it.
    """
    train_x, train_y, test_x, test_y = _locate(dataset, data_dir)
    train = _read_pair(train_x, train_y, dataset)
    test = _read_pair(test_x, test_y, dataset)
    return make(dataset.name, train, test, dataset.num_classes, (dataset.mean,), (dataset.std,))


def _locate(dataset: IdxDataset, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """The four files, of the first folder that has them all; a plain file comes before its ``.gz``."""
    candidates = _candidates(dataset, data_dir)
    incomplete = ""
    for folder in candidates:
        found = [next((p for p in (folder / n, folder / f"{n}.gz") if p.is_file()), None) for n in _NAMES]
        paths = [path for path in found if path is not None]
        if len(paths) == len(_NAMES):
            return paths
        if paths and not incomplete:
            missing = ", ".join(name for name, path in zip(_NAMES, found, strict=True) if path is None)
            incomplete = f"; {folder} lacks {missing} (plain or .gz)"
    looked = ", ".join(str(folder) for folder in candidates)
    where = f"data_dir or {ENVIRONMENT_VARIABLE} to the folder that holds {_NAMES[0]}.gz and the other three"
    raise FileNotFoundError(f"{dataset.name}: not found in {looked}{incomplete}; {dataset.advice} set {where}")


def _candidates(dataset: IdxDataset, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Folders to look in, the best first.

    A given ``data_dir`` is the only place: no other may silently stand in for it. Folders named after
    the data set come before a place itself, because all data sets use the same file names.
    """
    variable = os.environ.get(ENVIRONMENT_VARIABLE, "")
    place = data_dir if data_dir is not None else variable or None
    system = [] if data_dir is not None else [_SYSTEM / dataset.name.replace("_", "-")]
    if place is None:
        return system
    root = Path(place).expanduser()
    return [*(root / folder for folder in dataset.folders), *system, root]


def _read_pair(images_path: Path, labels_path: Path, dataset: IdxDataset) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, H, W, 1]`` uint8 and labels ``[N]`` int32, checked against each other and the checksums.

    The structure is checked first: it says more about what is wrong than a checksum does.
    """
    images, labels = idx.read(images_path, 3), idx.read(labels_path, 1)
    if len(images) != len(labels):
        raise ValueError(
            f"{labels_path}: {len(labels)} labels, but {images_path.name} beside it has {len(images)} images"
        )
    if labels.max() >= dataset.num_classes:
        raise ValueError(f"{labels_path}: label {labels.max()} found: must be in [0, {dataset.num_classes - 1}]")
    _verify(images_path, images, dataset)
    _verify(labels_path, labels, dataset)
    return images[..., None], labels.astype(np.int32)


def _verify(path: Path, values: np.ndarray, dataset: IdxDataset) -> None:
    """Compares the whole content, header included, with the published one.

    The uncompressed content is what is hashed: the same bytes are distributed in gzip files that
    differ in time stamp and compression.
    """
    header = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes()
    digest = hashlib.sha256(header)
    digest.update(np.ascontiguousarray(values).data)
    published, found = dataset.sha256[path.name.removesuffix(".gz")], digest.hexdigest()
    if found != published:
        raise ValueError(
            f"{path}: not the published file of {dataset.name}: SHA-256 of its content {found}: must be {published}; "
            "get it again (for data of your own: fd.data.from_arrays)"
        )
