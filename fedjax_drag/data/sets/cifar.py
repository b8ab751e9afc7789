"""CIFAR-10 and CIFAR-100: small colour photographs, in the binary version and as the Python batches."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.checks import ArgumentError
from fedjax_drag.data.dataset import FederatedDataset, make
from fedjax_drag.data.formats import compressed, locate, unpickle
from fedjax_drag.data.formats.cache import Arrays, cached

_SHAPE = (3, 32, 32)
"""Of an image in the files: planes of red, green and blue."""
_PIXELS = 3 * 32 * 32


class CifarDataset(NamedTuple):
    """A published data set of colour images in one of two formats.

    Attributes:
      name: its name here.
      folders: names of folders below a searched folder in which its files may be.
      num_classes: for each kind of label an image has; labels are 0 .. num_classes - 1.
      keys: of the labels in the Python batches, in the order of their bytes in the binary version.
      num_images: for training and for testing.
      mean: of the training pixels of each channel, scaled to [0, 1].
      std: of the training pixels of each channel, scaled to [0, 1].
      binary: files of the binary version: those for training, of equal size, then that for testing.
      python: files of the Python version, in the same order.
      checksums: of the uncompressed content, SHA-256 or MD5, by official file name; a file without one is not verified.
      advice: how to get it.
    """

    name: str
    folders: tuple[str, ...]
    num_classes: tuple[int, ...]
    keys: tuple[str, ...]
    num_images: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    binary: tuple[str, ...]
    python: tuple[str, ...]
    checksums: Mapping[str, str]
    advice: str


CIFAR10 = CifarDataset(
    "cifar10",
    (*(f"{place}cifar-10-batches-{kind}" for kind in ("bin", "py") for place in ("", "cifar10/")), "cifar10"),
    (10,),
    ("labels",),
    (50_000, 10_000),
    (0.4914, 0.4822, 0.4465),
    (0.2470, 0.2435, 0.2616),
    (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    "get its binary or Python version, unpack it and",
)
"""Photographs of animals and vehicles: 50,000 for training, 10,000 for testing (Krizhevsky, 2009)."""

CIFAR100 = CifarDataset(
    "cifar100",
    (*(f"{place}cifar-100-{kind}" for kind in ("binary", "python") for place in ("", "cifar100/")), "cifar100"),
    (20, 100),
    ("coarse_labels", "fine_labels"),
    (50_000, 10_000),
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
    ("train.bin", "test.bin"),
    ("train", "test"),
    {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    "get its binary or Python version, unpack it and",
)
"""Photographs of 100 classes in 20 groups of five: 50,000 for training, 10,000 for testing (Krizhevsky, 2009)."""


def load_cifar(
    dataset: CifarDataset, data_dir: str | os.PathLike[str] | None = None, *, coarse: bool = False
) -> FederatedDataset:
    """Finds, reads and verifies CIFAR-10 or CIFAR-100.

    The binary version is used where it is complete, else the Python version. Python files are pickles: they are read by
    an unpickler that accepts plain data only.

    Args:
      dataset: which.
      data_dir: as in :func:`fedjax_drag.data.formats.files.load_idx`.
      coarse: for CIFAR-100: the 20 groups in place of the 100 classes; they are ``cifar100_coarse`` then.

    Returns:
      Images uint8 ``[32, 32, 3]``, labels int32, unpartitioned.

    Raises:
      FileNotFoundError: files are missing; the one line says where they were searched for and what to do.
      ValueError: a file is damaged or is not the published one, or there are no coarse labels.
    """
    if coarse and len(dataset.keys) == 1:
        raise ArgumentError("coarse", f"must be False: {dataset.name} has no coarse labels", given=coarse)
    paths = find(dataset, data_dir)
    arrays = cached(dataset.name, paths, lambda: _read(dataset, paths), version=[1, dataset])
    column = 0 if coarse else -1
    train, test = ((arrays[f"{part}_x"], arrays[f"{part}_y"][column]) for part in ("train", "test"))
    name = f"{dataset.name}_coarse" if coarse else dataset.name
    return make(name, train, test, dataset.num_classes[column], dataset.mean, dataset.std)


def find(dataset: CifarDataset, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """The files of the binary version or, if it is not there, of the Python version."""
    try:
        return locate.find(dataset.name, dataset.binary, dataset.folders, data_dir, dataset.advice)
    except FileNotFoundError as error:
        missing = error
    try:
        return locate.find(dataset.name, dataset.python, dataset.folders, data_dir, dataset.advice)
    except FileNotFoundError as error:
        raise (error if " lacks " in str(error) else missing) from None  # the former: some of its files exist


def _read(dataset: CifarDataset, paths: list[Path]) -> Arrays:
    """``train_x``, ``test_x`` ``[N, 32, 32, 3]`` uint8, and ``train_y``, ``test_y`` ``[kinds of labels, N]`` int32.

    Files are read one by one into arrays of the final size: images are in memory once, those of one file twice.
    """
    arrays = {}
    read_file = _read_binary if compressed.official_name(paths[0]) in dataset.binary else _read_python
    for part, files, num_images in zip(("train", "test"), (paths[:-1], paths[-1:]), dataset.num_images, strict=True):
        x = np.empty((num_images, *_SHAPE[1:], _SHAPE[0]), np.uint8)
        y = np.empty((len(dataset.keys), num_images), np.int32)
        per_file = num_images // len(files)
        for i, path in enumerate(files):
            own = slice(i * per_file, (i + 1) * per_file)
            images, y[:, own] = read_file(dataset, path, per_file)
            x[own] = images.reshape(per_file, *_SHAPE).transpose(0, 2, 3, 1)
            _check_labels(dataset, path, y[:, own])
        arrays |= {f"{part}_x": x, f"{part}_y": y}
    return arrays


def _read_binary(dataset: CifarDataset, path: Path, num_images: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels ``[n, 3072]`` and labels ``[kinds, n]`` of a file of label bytes and pixels, image by image."""
    kinds = len(dataset.keys)
    size = num_images * (kinds + _PIXELS)
    content = compressed.read(path, limit=size)
    if len(content) < size:
        raise ValueError(f"{path}: truncated: {len(content)} bytes, but {num_images} images take {size}; get it again")
    compressed.verify(dataset.name, path, dataset.checksums, content)
    images = np.frombuffer(content, np.uint8).reshape(num_images, -1)
    return images[:, kinds:], images[:, :kinds].T


def _read_python(dataset: CifarDataset, path: Path, num_images: int) -> tuple[np.ndarray, np.ndarray]:
    """The same from a pickled dictionary, which is verified before it is unpickled."""
    content = compressed.read(path, limit=num_images * (_PIXELS + 1024) + (1 << 20))  # image names take space too
    compressed.verify(dataset.name, path, dataset.checksums, content)
    entries = unpickle.loads(path, content)
    images, expected = entries.get("data"), (num_images, _PIXELS)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape != expected:
        raise ValueError(f"{path}: its 'data' must be an array uint8 of shape {expected}; get it again")
    return images, np.array([_listed_labels(path, entries, key, num_images) for key in dataset.keys])


def _listed_labels(path: Path, entries: dict[str, Any], key: str, num_images: int) -> list[int]:
    labels = entries.get(key)
    if isinstance(labels, list) and len(labels) == num_images:
        wrong = [label for label in labels if type(label) is not int or not 0 <= label < 256]
        if not wrong:
            return labels
    raise ValueError(f"{path}: its {key!r} must be a list of {num_images} labels; get it again")


def _check_labels(dataset: CifarDataset, path: Path, labels: np.ndarray) -> None:
    for values, num_classes in zip(labels, dataset.num_classes, strict=True):
        if values.max() >= num_classes:
            raise ValueError(f"{path}: label {values.max()} found: must be in [0, {num_classes - 1}]")
