"""CIFAR-10 and CIFAR-100: small colour photographs, in the binary version and as the Python batches."""

import io
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.data.formats import compressed
from fedjax_drag.data.formats.cache import Arrays
from fedjax_drag.data.sets.published import Published

_PLANES = (3, 32, 32)
"""Of an image in the files: red, green and blue."""
_PIXELS = 3 * 32 * 32


def _read(dataset: Published, paths: list[Path], *, labels: tuple[str, ...], column: int = -1) -> Arrays:
    """Both parts. Files are read one by one into arrays of the final size: images are in memory once.

    Args:
      dataset: which.
      paths: its files: those for training, of equal size, and the one for testing.
      labels: the kinds of labels that an image has: their keys in the Python batches, in the order of their bytes in
        the binary version.
      column: which of them to take.
    """
    arrays = {}
    is_binary = compressed.official_name(paths[0]).endswith(".bin")
    for part, files, num_images in zip(("train", "test"), (paths[:-1], paths[-1:]), dataset.sizes, strict=True):
        x, y = np.empty((num_images, *dataset.shape), np.uint8), np.empty(num_images, np.int32)
        per_file = num_images // len(files)
        for i, path in enumerate(files):
            own = slice(i * per_file, (i + 1) * per_file)
            if is_binary:
                rows = _read_binary(dataset, path, per_file, len(labels) + _PIXELS)
                images, y[own] = rows[:, len(labels) :], rows[:, : len(labels)][:, column]
            else:
                batch = _read_batch(dataset, path)
                images, y[own] = batch[b"data"], batch[labels[column].encode()]
            x[own] = images.reshape(per_file, *_PLANES).transpose(0, 2, 3, 1)
            dataset.check_labels(path, y[own].min(), y[own].max())
        arrays |= {f"{part}_x": x, f"{part}_y": y}
    return arrays


def _read_binary(dataset: Published, path: Path, num_images: int, width: int) -> np.ndarray:
    """Label bytes and pixels ``[num_images, width]``, image by image."""
    size = num_images * width
    content = compressed.read(path, size)
    if len(content) < size:
        raise ValueError(f"{path}: truncated: {len(content)} bytes, but {num_images} images take {size}; get it again")
    compressed.verify(dataset.name, path, dataset.checksums, content)
    return np.frombuffer(content, np.uint8).reshape(num_images, width)


def _read_batch(dataset: Published, path: Path) -> dict[bytes, Any]:
    """A pickled dictionary of the Python version; only what has the published checksum is unpickled."""
    content = compressed.read(path, max(dataset.sizes) * (_PIXELS + 1024) + (1 << 20))  # image names take space too
    compressed.verify(dataset.name, path, dataset.checksums, content)
    try:
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path}: not a pickle of plain data and arrays: {error}; get it again") from error


class _Unpickler(pickle.Unpickler):
    """Reads plain data and arrays; an ordinary one calls every function that a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        arrays = ("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")
        if (module, name) not in arrays:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


CIFAR10 = Published(
    name="cifar10",
    about="photographs, 32x32 colour, 10 classes, 50,000 + 10,000 examples; binary or Python files",
    read=partial(_read, labels=("labels",)),
    folders=(
        *(f"{place}cifar-10-batches-{kind}" for kind in ("bin", "py") for place in ("", "cifar10/")),
        "cifar10",
    ),
    files=(
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    ),
    advice="get its binary or Python version, unpack it and",
    num_classes=10,
    shape=(32, 32, 3),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    checksums={
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
    sizes=(50_000, 10_000),
    tfds="cifar10",
)
"""Photographs of animals and vehicles (Krizhevsky, 2009)."""

CIFAR100 = CIFAR10._replace(
    name="cifar100",
    about="photographs, 32x32 colour, 100 classes, 50,000 + 10,000 examples; binary or Python files",
    read=partial(_read, labels=("coarse_labels", "fine_labels")),
    folders=(
        *(f"{place}cifar-100-{kind}" for kind in ("binary", "python") for place in ("", "cifar100/")),
        "cifar100",
    ),
    files=(("train.bin", "test.bin"), ("train", "test")),
    num_classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    checksums={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    tfds="cifar100",
)
"""Photographs of 100 classes in 20 groups of five (Krizhevsky, 2009)."""

CIFAR100_COARSE = CIFAR100._replace(
    name="cifar100_coarse",
    about="photographs, 32x32 colour, 20 groups of classes, 50,000 + 10,000 examples; binary or Python files",
    read=partial(_read, labels=("coarse_labels", "fine_labels"), column=0),
    num_classes=20,
    tfds="",
)
"""The same with the groups as classes."""
