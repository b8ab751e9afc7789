"""SVHN, cropped: house numbers in photographs of streets, digit by digit, in MATLAB files."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_drag.data.dataset import FederatedDataset, make
from fedjax_drag.data.formats import compressed, locate
from fedjax_drag.data.formats.cache import Arrays, cached

_MOST = 1 << 28
"""Largest number of bytes of a file; the published ones have 182 and 64 million."""


class SvhnDataset(NamedTuple):
    """A published data set in the format of SVHN.

    Attributes:
      name: its name here.
      folders: names of folders below a searched folder in which its files may be.
      mean: of the training pixels of each channel, scaled to [0, 1].
      std: of the training pixels of each channel, scaled to [0, 1].
      checksums: of the content, MD5, by official file name: for training and for testing.
      advice: how to get it.
    """

    name: str
    folders: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    checksums: Mapping[str, str]
    advice: str


SVHN = SvhnDataset(
    "svhn",
    ("svhn", "SVHN", "svhn_cropped"),
    (0.4377, 0.4438, 0.4728),
    (0.1980, 0.2010, 0.1970),
    {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"},
    "get its cropped digits, train_32x32.mat and test_32x32.mat, and",
)
"""House numbers, 32x32: 73,257 for training, 26,032 for testing (Netzer et al., 2011)."""


def load_svhn(dataset: SvhnDataset = SVHN, data_dir: str | os.PathLike[str] | None = None) -> FederatedDataset:
    """Finds, verifies and reads the cropped digits of SVHN, without the extra ones.

    Args:
      dataset: which.
      data_dir: as in :func:`fedjax_drag.data.formats.files.load_idx`.

    Returns:
      Images uint8 ``[32, 32, 3]``, labels int32 0 to 9 (10 in the files becomes 0), unpartitioned.

    Raises:
      FileNotFoundError: files are missing; the one line says where they were searched for and what to do.
      ValueError: a file is damaged or is not the published one; the one line names it.
    """
    paths = find(dataset, data_dir)

    def read() -> Arrays:
        arrays = {}
        for part, path in zip(("train", "test"), paths, strict=True):
            arrays[f"{part}_x"], arrays[f"{part}_y"] = _read(dataset, path)
        return arrays

    arrays = cached(dataset.name, paths, read, version=[1, dataset])
    train, test = ((arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test"))
    return make(dataset.name, train, test, 10, dataset.mean, dataset.std)


def find(dataset: SvhnDataset, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Its two files; FileNotFoundError as in :func:`load_svhn`."""
    return locate.find(dataset.name, tuple(dataset.checksums), dataset.folders, data_dir, dataset.advice)


def _read(dataset: SvhnDataset, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, 32, 32, 3]`` and labels ``[N]`` of a file."""
    variables = _parse(dataset, path)
    x, y = (np.asarray(variables.get(name)) for name in ("X", "y"))
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or not x.shape[3]:
        raise ValueError(f"{path}: X is {x.dtype} of shape {x.shape}: must be uint8 [32, 32, 3, N]; get it again")
    if y.shape != (x.shape[3], 1) or y.dtype.kind not in "uif" or not np.isin(y, range(1, 11)).all():
        raise ValueError(f"{path}: y must be [N, 1] labels from 1 to 10, one for each image; get it again")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y[:, 0].astype(np.int32) % 10


def _parse(dataset: SvhnDataset, path: Path) -> dict[str, np.ndarray]:
    """The variables X and y; the file is verified before the library parses it."""
    from scipy.io import loadmat  # here, because it is slow to import

    content = compressed.read(path, limit=_MOST)
    compressed.verify(dataset.name, path, dataset.checksums, content)
    try:
        return loadmat(io.BytesIO(content), variable_names=("X", "y"))
    except Exception as error:  # the library may raise any exception on a damaged file
        problem = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: not a readable MATLAB file ({problem}); get it again") from error
