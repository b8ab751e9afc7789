"""Preparing image data sets for TensorFlow Datasets (TFDS), from local files or by its own download."""

import io
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.checks import ArgumentError, first_line
from fedjax_drag.data.formats.locate import Place
from fedjax_drag.data.sets import cifar, tfds

_ID_DIGITS = {"cifar10": 5, "cifar100": 5, "svhn": 6}
"""Digits of the number in the names of the images, for data sets whose images TFDS names."""

Columns = dict[str, np.ndarray]
"""The features of all examples of a split, by their names in TFDS."""


def prepare(
    name: str,
    source_dir: Place = None,
    data_dir: Place = None,
    allow_download: bool = False,
) -> Path:
    """Prepares a data set as TFDS does, in the format that :func:`fedjax_drag.data.sets.tfds.load` reads.

    From the original files it makes the same as TFDS after a download: name, version, features, examples and their
    order, so that ``tensorflow_datasets.data_source(name)`` reads it; only the class names of CIFAR and the split
    ``extra`` of SVHN are missing. Needs the extra ``tfds``, and TensorFlow for a download only. TFDS shows its own
    progress; an interrupted preparation leaves nothing that counts as prepared.

    Args:
      name: one of ``tfds.DATASETS``.
      source_dir: the folder of the original files, as for :func:`fedjax_drag.data.load`.
      data_dir: TFDS's folder, as for :func:`fedjax_drag.data.sets.tfds.load`.
      allow_download: if there is no ``source_dir``, TFDS may download the files.

    Returns:
      The folder of the prepared data set, also if it was prepared before.

    Raises:
      FileNotFoundError: ``source_dir`` lacks files.
      ValueError: an unknown name; neither ``source_dir`` nor a download; a file is damaged; a package is missing; the
        data set is there in another format.
      OSError: the download failed, or the folder cannot be written.
    """
    folder = tfds.prepared(name, data_dir)
    if folder is not None:
        return folder
    if source_dir is None and not allow_download:
        raise ArgumentError(
            name,
            "give the folder of its original files (--from DIR, source_dir) or let TFDS download them "
            "(--allow-download, allow_download=True)",
        )
    tfds.refuse_other_formats(name, data_dir)
    place = _prepare(name, None if source_dir is None else _read(name, source_dir), tfds.root(data_dir))
    folder = tfds.prepared(name, data_dir)
    if folder is None:  # TFDS accepted another folder as prepared
        raise ValueError(f"{place}: in the way of what is to be prepared; move or delete it")
    return folder


def _read(name: str, source_dir: Place) -> dict[str, Columns]:
    """The columns of both splits, as in the original files."""
    dataset = tfds.DATASETS[name]
    read = dataset.load(source_dir)
    coarse = cifar.CIFAR100_COARSE.load(source_dir) if name == "cifar100" else None
    splits = {}
    for split, size in zip(("train", "test"), dataset.sizes, strict=True):
        x, y = np.asarray(getattr(read, split).x), np.asarray(getattr(read, split).y)
        if len(y) < size:
            raise ValueError(f"{source_dir}: {name} has {len(y):,} {split} examples: must be {size:,}")
        x = x.transpose(0, 2, 1, 3) if dataset.transposed else x
        splits[split] = {"image": x[:size], "label": y[:size] + dataset.first_label}
        if coarse is not None:
            splits[split]["coarse_label"] = np.asarray(getattr(coarse, split).y)
    return splits


def _prepare(name: str, splits: dict[str, Columns] | None, root: Path) -> str:
    """Lets TFDS write the examples, or download and write them; returns the folder.

    TFDS writes to a temporary folder, which it renames when all is done.
    """
    library = tfds.library()
    if splits is None:
        try:
            import_module("tensorflow")
        except ImportError as error:
            raise ArgumentError(
                name,
                f"a download needs TensorFlow, which is not there ({first_line(error)}); pip install "
                "tensorflow-cpu, or prepare it from its original files (--from DIR, source_dir), which does without",
            ) from error
    try:
        builder = library.builder(tfds.DATASETS[name].tfds, data_dir=os.fspath(root))
        if splits is not None:  # the one step of a builder that differs between data sets
            digits = _ID_DIGITS.get(name, 0)
            examples = {split: _examples(columns, split, digits) for split, columns in splits.items()}
            builder._split_generators = lambda dl_manager: examples
        config = library.download.DownloadConfig(try_download_gcs=False)  # prepared data there have another format
        builder.download_and_prepare(file_format=tfds.FORMAT, download_config=config)
    except Exception as error:  # network, disk or files; TFDS has no common class of errors
        raise OSError(f"{name}: TFDS could not prepare it ({first_line(error)})") from error
    return builder.data_dir


def _examples(columns: Columns, split: str, id_digits: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Index, by which TFDS shuffles, and features of the examples of a split."""
    for place in range(len(columns["label"])):
        example: dict[str, Any] = {key: values[place] for key, values in columns.items()}
        example["image"] = _png(example["image"])
        if id_digits:
            example["id"] = f"{split}_{place:0{id_digits}d}"
        yield place, example


def _png(image: np.ndarray) -> io.BytesIO:
    """An encoded image, which TFDS stores unchanged; its own encoder is slower and needs TensorFlow."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(stream, "PNG")
    stream.seek(0)
    return stream
