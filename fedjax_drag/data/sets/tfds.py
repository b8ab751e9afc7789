"""Image data sets that TensorFlow Datasets (TFDS) has prepared, read without TensorFlow.

TFDS keeps a data set in ``<root>/<name>[/<config>]/<version>``. Data prepared as ``array_record`` can be read
without TensorFlow. Images, labels and their order are those of the original files: TFDS shuffles by a hash, which this
module reverses.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.formats.cache import Arrays, cached
from fedjax_drag.data.formats.locate import Place
from fedjax_drag.data.sets.cifar import CIFAR10, CIFAR100
from fedjax_drag.data.sets.mnist import EMNIST, FASHION_MNIST, MNIST
from fedjax_drag.data.sets.published import Published
from fedjax_drag.data.sets.svhn import SVHN

ENVIRONMENT_VARIABLE = "TFDS_DATA_DIR"
FORMAT = "array_record"
_INFO = "dataset_info.json"
_CHUNK = 1000
"""Examples read at a time."""

_FEATURES = "features.json"
_CLASSES = (
    "tensorflow_datasets.FeaturesDict",
    "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "tensorflow_datasets.core.features.image_feature.Image",
    "tensorflow_datasets.core.features.class_label_feature.ClassLabel",
    "tensorflow_datasets.core.features.text_feature.Text",
)
"""The classes that the features of these data sets have; TFDS would import the modules of others."""


DATASETS: dict[str, Published] = {
    dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, *EMNIST.values(), CIFAR10, CIFAR100, SVHN)
}
"""The data sets that are in TFDS too, by their names here."""


def load(name: str, data_dir: Place = None) -> FederatedDataset:
    """Reads a prepared data set; needs the extra ``tfds``, but no TensorFlow.

    It is decoded once and kept by :func:`fedjax_drag.data.formats.cache.cached`: after that, loading needs NumPy only.

    Args:
      name: one of ``DATASETS``.
      data_dir: TFDS's folder; by default that in the environment variable ``TFDS_DATA_DIR``, or
        ``~/tensorflow_datasets``. The newest version there that can be read is used.

    Returns:
      Images uint8 ``[N, H, W, C]``, labels int32, unpartitioned.

    Raises:
      FileNotFoundError: it is not prepared; the one line says what to do.
      ValueError: an unknown name; it is prepared in another format, damaged or not the published one, or a package is
        missing; the one line says what to do.
    """
    folder = prepared(name, data_dir)
    dataset = DATASETS[name]
    if folder is None:
        refuse_other_formats(name, data_dir)
        raise FileNotFoundError(
            f"{name}: not prepared in {root(data_dir) / dataset.tfds}; run: fedjax-drag data prepare {name} --from DIR "
            f"(the folder of its original files), or set data_dir or {ENVIRONMENT_VARIABLE} to TFDS's folder"
        )
    sources = sorted(path for path in folder.iterdir() if path.is_file())
    return dataset.of_arrays(cached(f"{name}-tfds", sources, lambda: _read(dataset, folder)))


def prepared(name: str, data_dir: Place = None) -> Path | None:
    """The folder of the newest version of a data set that :func:`load` can read, or None.

    It looks up a few files, and needs the standard library only.

    Args:
      name: one of ``DATASETS``.
      data_dir: as in :func:`load`.

    Raises:
      ValueError: an unknown name.
    """
    checks.one_of("name", name, DATASETS)
    return next((folder for folder, formats in _versions(name, data_dir) if FORMAT in formats), None)


def root(data_dir: Place) -> Path:
    """The folder of all data sets of TFDS."""
    return Path(os.path.expanduser(data_dir or os.environ.get(ENVIRONMENT_VARIABLE) or "~/tensorflow_datasets"))


def library() -> Any:
    """The package ``tensorflow_datasets``, which is optional and takes seconds to import.

    Raises:
      ValueError: it or a package that it needs is missing; the one line says which.
    """
    try:
        for needed in ("array_record.python.array_record_data_source", "importlib_resources", "PIL.Image"):
            import_module(needed)
        return import_module("tensorflow_datasets")
    except ImportError as error:
        raise checks.ArgumentError(
            "TFDS",
            f"a package that it needs is not there ({checks.first_line(error)}); pip install 'fedjax-drag[tfds]'",
        ) from error


def refuse_other_formats(name: str, data_dir: Place) -> None:
    """Raises ValueError if there is a version of a data set that :func:`load` cannot read."""
    for folder, formats in _versions(name, data_dir):
        if not formats:
            raise ValueError(f"{folder / _INFO}: not what TFDS writes; delete {folder} and prepare it again")
        if FORMAT not in formats:
            raise ValueError(
                f"{folder}: prepared as {', '.join(sorted(formats))}, which cannot be read without TensorFlow; prepare "
                f"it in another folder: fedjax-drag data prepare {name} --from DIR --data-dir OTHER"
            )


def _versions(name: str, data_dir: Place) -> Iterator[tuple[Path, set[str]]]:
    """Folders of all versions that TFDS has finished, the newest first, with the formats in which they are prepared.

    TFDS prepares in a folder of another name, which it renames at the end. A damaged version has no format.
    """
    place = root(data_dir) / DATASETS[name].tfds
    folders = [path for path in place.glob("*.*.*") if re.fullmatch(r"\d{1,9}\.\d{1,9}\.\d{1,9}", path.name)]
    for folder in sorted(folders, key=lambda path: [int(part) for part in path.name.split(".")], reverse=True):
        if (folder / _INFO).is_file():
            try:
                info = json.loads((folder / _INFO).read_bytes())
                formats = {info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", ())}
            except (OSError, ValueError, TypeError, AttributeError, RecursionError):
                formats = set()
            yield folder, {str(entry) for entry in formats}


def _check_features(folder: Path) -> None:
    """Refuses features of other classes than those of these data sets, before TFDS looks for them."""

    def check(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                names_class = key.replace("_", "").lower() in ("pythonclassname", "type", "protocls")
                if (names_class and value not in _CLASSES) or (key == "content" and not isinstance(value, dict)):
                    raise ValueError(f"{_FEATURES} has {key}={value!r:.80}: must be one that TFDS writes")
                check(value)
        elif isinstance(node, list):
            for entry in node:
                check(entry)

    check(json.loads((folder / _FEATURES).read_bytes()))


def _read(dataset: Published, folder: Path) -> Arrays:
    """Images and labels of both splits, decoded and in the order of the original files."""
    from tqdm import tqdm

    tfds, arrays = library(), {}
    total, about = sum(dataset.sizes), f"{dataset.name}: decoding"
    try:
        with tqdm(total=total, desc=about, unit=" images", dynamic_ncols=True, leave=False, disable=None) as bar:
            _check_features(folder)
            builder = tfds.builder_from_directory(os.fspath(folder))
            for split, size in zip(("train", "test"), dataset.sizes, strict=True):
                source = builder.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})
                if len(source) != size:
                    raise ValueError(f"{len(source):,} examples in {split}: must be {size:,}")
                order = range(size) if builder.info.disable_shuffling else written_order(split, size)
                x, y = np.empty((size, *dataset.shape), np.uint8), np.empty(size, np.int64)
                for begin in range(0, size, _CHUNK):
                    places = order[begin : begin + _CHUNK]
                    examples = source.__getitems__(range(begin, begin + len(places)))
                    for place, example in zip(places, examples, strict=True):
                        x[place], y[place] = _pixels(example["image"], dataset.shape), example["label"]
                    bar.update(len(places))
                arrays[f"{split}_x"], arrays[f"{split}_y"] = x.transpose(0, 2, 1, 3) if dataset.transposed else x, y
    except Exception as error:  # the libraries raise any about files that they cannot read
        raise ValueError(
            f"{folder}: cannot be read: {checks.first_line(error)}; delete it and prepare it again"
        ) from error
    for labels in ("train_y", "test_y"):
        dataset.check_labels(folder, arrays[labels].min(), arrays[labels].max())
        arrays[labels] = (arrays[labels] - dataset.first_label).astype(np.int32)
    return arrays


def written_order(split: str, size: int) -> list[int]:
    """The original indices of the examples of a split, in the order in which TFDS writes them.

    They are sorted by the MD5 of the name of the split and of the index, in decimal digits.
    """
    salt = split.encode()
    return sorted(range(size), key=lambda place: hashlib.md5(b"%s%d" % (salt, place), usedforsecurity=False).digest())


def _pixels(png: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Decodes an image after a check of its header."""
    from PIL import Image

    height, width, channels = shape
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        if image.size != (width, height) or image.mode != {1: "L", 3: "RGB"}[channels]:
            raise ValueError(f"an image {image.mode} of {image.size} pixels: must be of shape {shape}")
        return np.asarray(image).reshape(shape)
