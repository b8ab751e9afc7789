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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset, make
from fedjax_drag.data.formats.cache import Arrays, cached
from fedjax_drag.data.formats.files import FASHION_MNIST, MNIST, IdxDataset, load_idx
from fedjax_drag.data.sets.cifar import CIFAR10, CIFAR100, CifarDataset, load_cifar
from fedjax_drag.data.sets.emnist import EMNIST
from fedjax_drag.data.sets.svhn import SVHN, load_svhn

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


class TfdsDataset(NamedTuple):
    """A data set in TFDS, and in its original files.

    Attributes:
      path: name in TFDS, and configuration if it has several: ``emnist/balanced``.
      shape: of an image.
      sizes: number of its training and of its test examples. They are those of the files except for EMNIST Letters:
        TFDS has the first 88,800 of 124,800 and the first 14,800 of 20,800.
      num_classes: labels are 0 .. num_classes - 1 here.
      mean: of the training pixels of each channel, scaled to [0, 1].
      std: of the training pixels of each channel, scaled to [0, 1].
      from_files: ``(data_dir) -> data set`` as read from the original files.
      first_label: in TFDS.
      transposed: whether rows and columns are exchanged in TFDS.
    """

    path: str
    shape: tuple[int, int, int]
    sizes: tuple[int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    from_files: Callable[[str | os.PathLike[str] | None], FederatedDataset]
    first_label: int = 0
    transposed: bool = False


def _idx(path: str, record: IdxDataset, sizes: tuple[int, int] = (60_000, 10_000)) -> TfdsDataset:
    statistics = (record.mean,), (record.std,)
    reader = partial(load_idx, record)
    return TfdsDataset(
        path, (28, 28, 1), sizes, record.num_classes, *statistics, reader, record.first_label, record.transposed
    )


def _cifar(record: CifarDataset) -> TfdsDataset:
    reader = partial(load_cifar, record)
    shape, num_classes = (32, 32, 3), record.num_classes[-1]
    return TfdsDataset(record.name, shape, record.num_images, num_classes, record.mean, record.std, reader)


_EMNIST_SIZES = {
    "byclass": (697_932, 116_323),
    "bymerge": (697_932, 116_323),
    "balanced": (112_800, 18_800),
    "letters": (88_800, 14_800),
    "digits": (240_000, 40_000),
    "mnist": (60_000, 10_000),
}

DATASETS: dict[str, TfdsDataset] = {
    "mnist": _idx("mnist", MNIST),
    "fashion_mnist": _idx("fashion_mnist", FASHION_MNIST),
    **{f"emnist_{s}": _idx(f"emnist/{s}", EMNIST[f"emnist_{s}"], sizes) for s, sizes in _EMNIST_SIZES.items()},
    "cifar10": _cifar(CIFAR10),
    "cifar100": _cifar(CIFAR100),
    "svhn": TfdsDataset(
        "svhn_cropped", (32, 32, 3), (73_257, 26_032), 10, SVHN.mean, SVHN.std, partial(load_svhn, SVHN)
    ),
}
"""The data sets that are in TFDS too, by their names here."""


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> FederatedDataset:
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
            f"{name}: not prepared in {root(data_dir) / dataset.path}; run: fedjax-drag data prepare {name} --from DIR "
            f"(the folder of its original files), or set data_dir or {ENVIRONMENT_VARIABLE} to TFDS's folder"
        )
    sources = sorted(path for path in folder.iterdir() if path.is_file())
    version = [1, dataset.sizes, dataset.num_classes, dataset.first_label, dataset.transposed]
    arrays = cached(f"{name}-tfds", sources, lambda: _read(name, folder), version)
    train, test = ((arrays[f"{split}_x"], arrays[f"{split}_y"]) for split in ("train", "test"))
    return make(name, train, test, dataset.num_classes, dataset.mean, dataset.std)


def prepared(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of the newest version of a data set that :func:`load` can read, or None.

    It looks up a few files, and needs the standard library only.

    Args:
      name: one of ``DATASETS``.
      data_dir: as in :func:`load`.

    Raises:
      ValueError: an unknown name.
    """
    checks.one_of("name", name, DATASETS)
    return next((folder for folder in _versions(name, data_dir) if FORMAT in _formats(folder)), None)


def root(data_dir: str | os.PathLike[str] | None) -> Path:
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
            "TFDS", f"a package that it needs is not there ({one_line(error)}); pip install 'fedjax-drag[tfds]'"
        ) from error


def refuse_other_formats(name: str, data_dir: str | os.PathLike[str] | None) -> None:
    """Raises ValueError if there is a version of a data set that :func:`load` cannot read."""
    for folder in _versions(name, data_dir):
        formats = _formats(folder)
        if not formats:
            raise ValueError(f"{folder / _INFO}: not what TFDS writes; delete {folder} and prepare it again")
        if FORMAT not in formats:
            raise ValueError(
                f"{folder}: prepared as {', '.join(sorted(formats))}, which cannot be read without TensorFlow; prepare "
                f"it in another folder: fedjax-drag data prepare {name} --from DIR --data-dir OTHER"
            )


def one_line(error: BaseException, most: int = 200) -> str:
    """The text of an exception of another library."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else f"{text[:most]}..."


def _versions(name: str, data_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Folders of all versions that TFDS has finished, in any format, the newest first.

    TFDS prepares in a folder of another name, which it renames at the end.
    """
    place = root(data_dir) / DATASETS[name].path
    entries = [path for path in place.glob("*.*.*") if re.fullmatch(r"\d{1,9}\.\d{1,9}\.\d{1,9}", path.name)]
    entries.sort(key=lambda path: [int(number) for number in path.name.split(".")], reverse=True)
    return (path for path in entries if (path / _INFO).is_file())


def _formats(folder: Path) -> set[str]:
    """The formats in which a version is prepared."""
    try:
        info = json.loads((folder / _INFO).read_bytes())
        formats = {info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", ())}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # damaged in any way
        return set()
    return {str(entry) for entry in formats}


def _check_features(folder: Path) -> None:
    """Refuses features of other classes than those of these data sets, before TFDS looks for them."""

    def check(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                names_class = key.replace("_", "").lower() in ("pythonclassname", "type", "protocls")
                if (names_class and value not in _CLASSES) or (key == "content" and not isinstance(value, dict)):
                    raise _PreparedError(f"{_FEATURES} has {key}={value!r:.80}: must be one that TFDS writes")
                check(value)
        elif isinstance(node, list):
            for entry in node:
                check(entry)

    check(json.loads((folder / _FEATURES).read_bytes()))


class _PreparedError(Exception):
    """The problem with a prepared data set, without its folder."""


@contextmanager
def _one_line_errors(folder: Path) -> Iterator[None]:
    """Turns errors of the libraries about unreadable files into one line that names the folder."""
    try:
        yield
    except _PreparedError as error:
        raise ValueError(f"{folder}: {error}; delete this folder and prepare it again") from None
    except Exception as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"{folder}: TFDS cannot read it ({what}); delete this folder and prepare it again") from error


def _read(name: str, folder: Path) -> Arrays:
    """Images and labels of both splits, decoded and in the order of the original files."""
    from tqdm import tqdm

    tfds, dataset = library(), DATASETS[name]
    arrays = {}
    total = sum(dataset.sizes)
    bar = tqdm(total=total, desc=f"{name}: decoding", unit=" images", dynamic_ncols=True, leave=False, disable=None)
    with _one_line_errors(folder), bar:
        _check_features(folder)
        builder = tfds.builder_from_directory(os.fspath(folder))
        for split, size in zip(("train", "test"), dataset.sizes, strict=True):
            source = builder.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})
            if len(source) != size:
                raise _PreparedError(f"{len(source):,} examples in {split}: must be {size:,}")
            order = range(size) if builder.info.disable_shuffling else written_order(split, size)
            x, y = np.empty((size, *dataset.shape), np.uint8), np.empty(size, np.int64)
            for begin in range(0, size, _CHUNK):
                places = order[begin : begin + _CHUNK]
                for place, example in zip(places, source.__getitems__(range(begin, begin + len(places))), strict=True):
                    x[place], y[place] = _pixels(example["image"], dataset.shape), example["label"]
                bar.update(len(places))
            arrays[f"{split}_x"] = np.ascontiguousarray(x.transpose(0, 2, 1, 3)) if dataset.transposed else x
            arrays[f"{split}_y"] = _labels(y, dataset)
    return arrays


def written_order(split: str, size: int) -> list[int]:
    """The original indices of the examples of a split, in the order in which TFDS writes them.

    They are sorted by the MD5 of the name of the split and of the index, in decimal digits.
    """
    salted = hashlib.md5(split.encode(), usedforsecurity=False)

    def digest(place: int) -> bytes:
        copy = salted.copy()
        copy.update(b"%d" % place)
        return copy.digest()

    return sorted(range(size), key=digest)


def _pixels(png: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Decodes an image after a check of its header."""
    from PIL import Image

    height, width, channels = shape
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        if image.size != (width, height) or image.mode != {1: "L", 3: "RGB"}[channels]:
            raise _PreparedError(f"an image {image.mode} of {image.size} pixels: must be of shape {shape}")
        return np.asarray(image).reshape(shape)


def _labels(y: np.ndarray, dataset: TfdsDataset) -> np.ndarray:
    first, last = dataset.first_label, dataset.first_label + dataset.num_classes - 1
    for label in (y.min(), y.max()):
        if not first <= label <= last:
            raise _PreparedError(f"label {label} found: must be in [{first}, {last}]")
    return (y - first).astype(np.int32)
