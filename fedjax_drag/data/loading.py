"""Data sets by name, and the sources of each."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from fedjax_drag import checks
from fedjax_drag.data import preparing
from fedjax_drag.data.dataset import FederatedDataset, normalized
from fedjax_drag.data.formats import files
from fedjax_drag.data.normalization import NORMALIZE, Normalize
from fedjax_drag.data.sets import adult, builtin, cifar, emnist, leaf, shakespeare, svhn, tfds
from fedjax_drag.data.validation import hold_out

Place = str | os.PathLike[str] | None


class Source(NamedTuple):
    """A source of a data set other than TFDS.

    Attributes:
      about: one line.
      read: ``(data_dir) -> data set``; FileNotFoundError if its files are not there.
      find: ``(data_dir) -> its files``, or the same error; None if it needs no files.
    """

    about: str
    read: Callable[[Place], FederatedDataset]
    find: Callable[[Place], list[Path]] | None = None


def _idx(record: files.IdxDataset, what: str, sizes: str) -> Source:
    about = f"{what}, 28x28 grey, {record.num_classes} classes, {sizes} examples; IDX files"
    return Source(about, partial(files.load_idx, record), partial(files.find, record))


def _cifar(record: cifar.CifarDataset, classes: str, coarse: bool = False) -> Source:
    about = f"photographs, 32x32 colour, {classes}, 50,000 + 10,000 examples; binary or Python files"
    return Source(about, partial(cifar.load_cifar, record, coarse=coarse), partial(cifar.find, record))


SOURCES: Mapping[str, Source] = {
    "digits": Source(
        "handwritten digits, 8x8 grey, 10 classes, 1,442 + 355 examples; ships with scikit-learn",
        lambda _: builtin.digits(),
    ),
    "synthetic": Source(
        "mixture of Gaussians, 32 numbers, 10 classes, 10,000 + 2,000 examples; computed",
        lambda _: builtin.synthetic(),
    ),
    "mnist": _idx(files.MNIST, "handwritten digits", "60,000 + 10,000"),
    "fashion_mnist": _idx(files.FASHION_MNIST, "articles of clothing", "60,000 + 10,000"),
    "emnist_balanced": _idx(emnist.EMNIST["emnist_balanced"], "digits and letters", "112,800 + 18,800"),
    "emnist_byclass": _idx(emnist.EMNIST["emnist_byclass"], "digits and letters", "697,932 + 116,323"),
    "emnist_bymerge": _idx(emnist.EMNIST["emnist_bymerge"], "digits and letters", "697,932 + 116,323"),
    "emnist_letters": _idx(emnist.EMNIST["emnist_letters"], "letters", "124,800 + 20,800"),
    "emnist_digits": _idx(emnist.EMNIST["emnist_digits"], "digits", "240,000 + 40,000"),
    "emnist_mnist": _idx(emnist.EMNIST["emnist_mnist"], "digits", "60,000 + 10,000"),
    "emnist_bymerge_test": Source(
        "the test images of emnist_bymerge alone, a seventh of each class for testing, 47 classes, 99,707 + 16,616 "
        "examples; IDX files",
        partial(emnist.load_bymerge_test, emnist.BYMERGE_TEST),
        partial(files.find, emnist.BYMERGE_TEST),
    ),
    "femnist": Source(
        "digits and letters by writer, 28x28 grey, 62 classes; LEAF's JSON files",
        partial(leaf.load_leaf, leaf.FEMNIST),
        partial(leaf.find, leaf.FEMNIST),
    ),
    "cifar10": _cifar(cifar.CIFAR10, "10 classes"),
    "cifar100": _cifar(cifar.CIFAR100, "100 classes"),
    "cifar100_coarse": _cifar(cifar.CIFAR100, "20 groups of classes", coarse=True),
    "svhn": Source(
        "house numbers, 32x32 colour, 10 classes, 73,257 + 26,032 examples; MATLAB files",
        partial(svhn.load_svhn, svhn.SVHN),
        partial(svhn.find, svhn.SVHN),
    ),
    "adult": Source(
        "incomes above 50,000 dollars, 108 numbers or 123 of 0 and 1, 2 classes, 32,561 + 16,281 examples; text files",
        partial(adult.load_adult, adult.ADULT),
        partial(adult.find, adult.ADULT),
    ),
    "shakespeare": Source(
        "80 characters and the one that follows, by role, 80 classes; plain text, or LEAF's JSON files",
        shakespeare.load_shakespeare,
        shakespeare.find,
    ),
}
"""Every data set that :func:`load` knows."""

DATASETS: tuple[tuple[str, str], ...] = tuple((name, source.about) for name, source in SOURCES.items())
"""Name and one-line description of each."""


def load(
    name: str,
    *,
    data_dir: Place = None,
    source: Literal["auto", "files", "tfds"] = "auto",
    allow_download: bool = False,
    normalize: Normalize = "standard",
    features: adult.Features | None = None,
    validation_fraction: float | int | None = None,
    validation_seed: int = 0,
) -> FederatedDataset:
    """Loads a data set, not yet split among clients.

    Files are verified, decoded once, and kept decoded in the user's cache folder (``FEDJAX_DRAG_CACHE`` names another
    one; set and empty, nothing is kept).

    Args:
      name: one of :data:`DATASETS`. ``synthetic`` and ``shakespeare`` have arguments of their own in :func:`synthetic`
        and :func:`load_shakespeare`.
      data_dir: the only folder to search for files: ``data_dir`` itself, or a folder below it under a usual name
        (``fashion_mnist``, ``FashionMNIST/raw``, ``cifar-10-batches-py`` ...). By default the folder in the environment
        variable ``FEDJAX_DRAG_DATA`` is searched in the same way, and ``/usr/share/datasets``. With TFDS its folder, by
        default that in ``TFDS_DATA_DIR`` or ``~/tensorflow_datasets``. Data sets that need no files ignore it.
      source: ``"files"``, plain or compressed as ``.gz`` or ``.xz``; ``"tfds"``, what TensorFlow Datasets has prepared
        as array_record, for which the extra ``tfds`` must be installed, but no TensorFlow; or ``"auto"``, files, else
        TFDS.
      allow_download: whether TFDS may download missing files, with TensorFlow.
      normalize: what a model sees. ``"standard"``: mean 0 and variance 1, by the published or measured statistics of
        the training inputs. ``"unit"``: inputs in [0, 1]: bytes of images divided by 255, as by torchvision's ToTensor;
        each numeric column of a table scaled by its smallest and largest training value. ``"none"``: bytes 0 to 255 (up
        to rounding), or the numbers of the files. All statistics are of the training examples before validation ones
        are moved. Text, which is tokens, is ``"standard"``.
      features: of ``adult`` alone: ``"columns"`` (its default), six numbers and a 0 or 1 for each word; or ``"bins"``,
        123 of 0 and 1, as LIBSVM's a9a, which ``normalize`` does not change.
      validation_fraction: share of the training examples, in (0, 1), or, as an integer, their number, that
        :func:`~fedjax_drag.data.hold_out` moves into a validation split; default none.
      validation_seed: of that draw, >= 0.

    Returns:
      The data set as NumPy arrays; no accelerator is touched.

    Raises:
      FileNotFoundError: its files are missing; the one line says what to do.
      ValueError: an unknown name or source, a source that does not have this data set, or a file that is damaged or not
        the published one.
    """
    checks.one_of("name", name, SOURCES)
    checks.one_of("source", source, ("auto", "files", "tfds"))
    checks.one_of("normalize", normalize, NORMALIZE)
    if name == "adult" and source != "tfds":  # scales some of its columns, and stores the result
        fed = adult.load_adult(adult.ADULT, data_dir, "columns" if features is None else features, normalize)
    else:
        if features is not None:
            raise checks.ArgumentError(
                "features", f"must be left out: {name} has its inputs in one form", given=features
            )
        fed = normalized(_loaded(name, data_dir, source, allow_download), normalize)
    return hold_out(fed, validation_fraction, validation_seed)


def _loaded(name: str, data_dir: Place, source: str, allow_download: bool) -> FederatedDataset:
    """The data set from the first of its sources."""
    if source == "tfds":
        checks.one_of("name", name, tfds.DATASETS)
        return _from_tfds(name, data_dir, allow_download)
    try:
        return SOURCES[name].read(data_dir)
    except FileNotFoundError as error:
        if source == "files" or name not in tfds.DATASETS:
            raise
        if allow_download or tfds.prepared(name, data_dir) is not None:
            return _from_tfds(name, data_dir, allow_download)
        raise FileNotFoundError(
            f"{error}; or let TFDS get it: fedjax-drag data prepare {name} --allow-download"
        ) from None


def where(name: str, data_dir: Place = None) -> str:
    """Location of the files that :func:`load` would read.

    Args:
      name: one of :data:`DATASETS`.
      data_dir: as in :func:`load`.

    Returns:
      ``"always"``, its file or the folder of its files, the folder of TFDS, or an empty text if they are missing.
    """
    checks.one_of("name", name, SOURCES)
    find = SOURCES[name].find
    if find is None:
        return "always"
    try:
        return os.path.commonpath(find(data_dir))
    except FileNotFoundError:
        folder = tfds.prepared(name, data_dir) if name in tfds.DATASETS else None
        return "" if folder is None else str(folder)


def _from_tfds(name: str, data_dir: Place, allow_download: bool) -> FederatedDataset:
    if allow_download:
        preparing.prepare(name, data_dir=data_dir, allow_download=True)
    return tfds.load(name, data_dir)
