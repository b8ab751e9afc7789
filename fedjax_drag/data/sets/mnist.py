"""MNIST and its relatives, small grey images in IDX files: also Fashion-MNIST, and EMNIST in six splits."""

import math
import struct
from pathlib import Path

import numpy as np

from fedjax_drag.data.formats import compressed
from fedjax_drag.data.formats.cache import Arrays
from fedjax_drag.data.sets.published import Published

_MOST = 1 << 30
"""Largest number of bytes of a file; the largest published one, of EMNIST, has half as many."""


def read_idx(path: Path, num_dimensions: int) -> tuple[np.ndarray, bytes]:
    """Reads an IDX file of unsigned bytes.

    The header is four bytes (two zeros, a type code, the number of dimensions) and one big-endian 32-bit size for each
    dimension; the values follow, and every byte of the file must belong to one.

    Args:
      path: the file; compressed if its name ends in ``.gz`` or ``.xz``.
      num_dimensions: required number of axes: 1 for labels, 3 for grey images ``[N, H, W]``.

    Returns:
      The values, uint8, with ``num_dimensions`` axes, read-only; and the whole content of the file.

    Raises:
      ValueError: it is no such file, truncated, has bytes left over or is damaged; the one line names it.
      OSError: it cannot be opened or read at all.
    """
    content = compressed.read(path, _MOST)
    expected, begin = bytes((0, 0, 8, num_dimensions)), 4 * (1 + num_dimensions)
    if content[:4] != expected:
        kind = f"not an IDX file of bytes with {num_dimensions} dimension(s)"
        raise ValueError(f"{path}: {kind}: starts with 0x{content[:4].hex()}, not 0x{expected.hex()}; get it again")
    if len(content) < begin:
        raise ValueError(f"{path}: truncated: ends within its header, after {len(content)} bytes; get it again")
    shape = struct.unpack(f">{num_dimensions}I", content[4:begin])
    size, follow = math.prod(shape), len(content) - begin
    if not size or size != follow:
        problem = "empty" if not size else "truncated" if follow < size else "bytes left over"
        raise ValueError(
            f"{path}: {problem}: header declares shape {shape}, {size} bytes, but {follow} follow it; get it again"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape), content


def _read(dataset: Published, paths: list[Path]) -> Arrays:
    """Both parts; each is checked against its labels before the checksums, whose errors are less specific."""
    arrays = {}
    for part, images_path, labels_path in zip(("train", "test"), paths[::2], paths[1::2], strict=False):
        (images, *_), (labels, *_) = contents = read_idx(images_path, 3), read_idx(labels_path, 1)
        if len(images) != len(labels):
            there = f"{images_path.name} beside it has {len(images)} images"
            raise ValueError(f"{labels_path}: {len(labels)} labels, but {there}")
        dataset.check_labels(labels_path, labels.min(), labels.max())
        for path, (_, content) in zip((images_path, labels_path), contents, strict=True):
            compressed.verify(dataset.name, path, dataset.checksums, content)
        arrays[f"{part}_x"] = (images.transpose(0, 2, 1) if dataset.transposed else images)[..., None]
        arrays[f"{part}_y"] = labels.astype(np.int32) - dataset.first_label
    return arrays


def _files(*parts: str) -> tuple[str, ...]:
    return tuple(f"{part}-{kind}-ubyte" for part in parts for kind in ("images-idx3", "labels-idx1"))


MNIST = Published(
    name="mnist",
    about="handwritten digits, 28x28 grey, 10 classes, 60,000 + 10,000 examples; IDX files",
    read=_read,
    folders=("mnist", "MNIST/raw"),
    files=(_files("train", "t10k"),),
    advice="get its four IDX files and",
    num_classes=10,
    shape=(28, 28, 1),
    mean=(0.1307,),
    std=(0.3081,),
    checksums={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    sizes=(60_000, 10_000),
    tfds="mnist",
)
"""Handwritten digits (LeCun et al., 1998)."""

FASHION_MNIST = MNIST._replace(
    name="fashion_mnist",
    about="articles of clothing, 28x28 grey, 10 classes, 60,000 + 10,000 examples; IDX files",
    folders=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
    advice="on Debian or Ubuntu: apt-get install dataset-fashion-mnist; or",
    mean=(0.2860,),
    std=(0.3530,),
    checksums={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    tfds="fashion_mnist",
)
"""Articles of clothing (Xiao et al., 2017)."""


def _emnist(
    split: str, what: str, num_classes: int, mean: float, std: float, train: int, test: int, first_label: int = 0
) -> Published:
    return Published(
        name=f"emnist_{split}",
        about=f"{what}, 28x28 grey, {num_classes} classes, {train:,} + {test:,} examples; IDX files",
        read=_read,
        folders=("emnist", "emnist/gzip", "gzip", "EMNIST/raw", "EMNIST/raw/gzip"),
        files=(_files(f"emnist-{split}-train", f"emnist-{split}-test"),),
        advice="get gzip.zip of EMNIST from NIST, unpack it and",
        num_classes=num_classes,
        shape=(28, 28, 1),
        mean=(mean,),
        std=(std,),
        checksums={
            "emnist-bymerge-test-images-idx3-ubyte": "68b2763a83f2661dace0df055282a50f4d4aea3dab401f2a04e2e7e2c5bc8590",
            "emnist-bymerge-test-labels-idx1-ubyte": "17b8bd69b4e584fa425d7268b1f58882ef4bf7f241a6116fa606bb6d36839b5a",
        },
        sizes=(train, test) if split != "letters" else (88_800, 14_800),
        tfds=f"emnist/{split}",
        first_label=first_label,
        transposed=True,
    )


EMNIST: dict[str, Published] = {
    dataset.name: dataset
    for dataset in (
        _emnist("balanced", "digits and letters", 47, 0.1751, 0.3332, 112_800, 18_800),
        _emnist("byclass", "digits and letters", 62, 0.1736, 0.3317, 697_932, 116_323),
        _emnist("bymerge", "digits and letters", 47, 0.1736, 0.3317, 697_932, 116_323),
        _emnist("letters", "letters", 26, 0.1722, 0.3309, 124_800, 20_800, first_label=1),
        _emnist("digits", "digits", 10, 0.1733, 0.3317, 240_000, 40_000),
        _emnist("mnist", "digits", 10, 0.1733, 0.3317, 60_000, 10_000),
    )
}
"""The published splits by name, ``emnist_byclass`` to ``emnist_mnist`` (Cohen et al., 2017).

ByClass has 10 digits, 26 upper and 26 lower case letters; ByMerge and Balanced merge upper and lower case of
the 15 letters that look alike in both; Letters merges all, and its labels 1 to 26 become 0 to 25. Images are transposed
in the files and upright here.
"""


def _read_bymerge_test(dataset: Published, paths: list[Path]) -> Arrays:
    """Both parts of the one pair of files.

    A seventh of each class at random is for testing. It is drawn from the raw bits of a generator, whose stream NumPy
    guarantees not to change.
    """
    arrays = _read(dataset, paths)
    x, y = arrays["train_x"], arrays["train_y"]
    order = np.lexsort((np.random.PCG64(0).random_raw(len(y)), y))  # by class, and random within
    counts = np.bincount(y)
    rank = np.empty(len(y), np.int64)
    rank[order] = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    test = rank < np.rint(counts / 7)[y]
    return {"train_x": x[~test], "train_y": y[~test], "test_x": x[test], "test_y": y[test]}


BYMERGE_TEST = EMNIST["emnist_bymerge"]._replace(
    name="emnist_bymerge_test",
    about="the test images of emnist_bymerge alone, a seventh of each class for testing, 47 classes, "
    "99,707 + 16,616 examples; IDX files",
    read=_read_bymerge_test,
    files=(_files("emnist-bymerge-test"),),
    sizes=(99_707, 16_616),
    tfds="",
)
"""A data set of 47 classes from the test split of EMNIST ByMerge, in place of EMNIST Balanced.

Each class is split at random, always in the same way, into a seventh for testing (to the nearest integer) and the
rest for training: the proportion of EMNIST Balanced. Both keep the order of the file. Accuracies are not comparable
with EMNIST Balanced: classes have between 415 and 6,400 images.
"""
