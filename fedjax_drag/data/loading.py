"""Data sets by name, and the sources of each."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from fedjax_drag import checks
from fedjax_drag.data import preparing
from fedjax_drag.data.dataset import FederatedDataset, normalized
from fedjax_drag.data.derived import next_tokens, pairs
from fedjax_drag.data.formats.locate import Place
from fedjax_drag.data.normalization import NORMALIZE, Normalize
from fedjax_drag.data.sets import adult, builtin, cifar, leaf, mnist, shakespeare, svhn, tfds
from fedjax_drag.data.sets.published import Published
from fedjax_drag.data.validation import hold_out


class Source(NamedTuple):
    """A source of a data set other than TFDS.

    Attributes:
      name: of the data set.
      about: one line.
      load: ``(data_dir) -> data set``; FileNotFoundError if its files are not there.
      find: ``(data_dir) -> its files``, or the same error; None if it needs no files.
    """

    name: str
    about: str
    load: Callable[[Place], FederatedDataset]
    find: Callable[[Place], list[Path]] | None = None


_SOURCES: tuple[Source | Published | leaf.LeafDataset, ...] = (
    Source(
        "digits",
        "handwritten digits, 8x8 grey, 10 classes, 1,442 + 355 examples; ships with scikit-learn",
        lambda _: builtin.digits(),
    ),
    Source(
        "synthetic",
        "mixture of Gaussians, 32 numbers, 10 classes, 10,000 + 2,000 examples; computed",
        lambda _: builtin.synthetic(),
    ),
    Source(
        "digits_pairs",
        "two of digits side by side, 8x16 grey, several labels of 10, 1,442 + 355 examples; ships with scikit-learn",
        lambda _: pairs(builtin.digits()),
    ),
    Source(
        "shapes",
        "a disc and a square in noise, 16x16 grey, a class of 3 for each pixel, 1,000 + 200 examples; computed",
        lambda _: builtin.shapes(),
    ),
    *(mnist.MNIST, mnist.FASHION_MNIST, *mnist.EMNIST.values(), mnist.BYMERGE_TEST, leaf.FEMNIST),
    *(cifar.CIFAR10, cifar.CIFAR100, cifar.CIFAR100_COARSE, svhn.SVHN),
    Source(
        "adult",
        "incomes above 50,000 dollars, 108 numbers or 123 of 0 and 1, 2 classes, 32,561 + 16,281 examples; text files",
        adult.load_adult,
        adult.find,
    ),
    Source(
        "adult_hours",
        "hours of work a week, a number, 107 numbers, 32,561 + 16,281 examples; the text files of adult",
        adult.load_hours,
        adult.find,
    ),
    Source("shakespeare", leaf.SHAKESPEARE.about, shakespeare.load_shakespeare, shakespeare.find),
    Source(
        "shakespeare_tokens",
        f"{leaf.SHAKESPEARE.about}; the next character at every place",
        lambda data_dir: next_tokens(shakespeare.load_shakespeare(data_dir)),
        shakespeare.find,
    ),
)
SOURCES: Mapping[str, Source | Published | leaf.LeafDataset] = {source.name: source for source in _SOURCES}
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

    Files are verified. Images and LEAF's files are decoded once, and kept decoded in the user's cache folder
    (``FEDJAX_DRAG_CACHE`` names another one; set and empty, nothing is kept).

    Args:
      name: one of :data:`DATASETS`. ``synthetic``, ``shapes`` and ``shakespeare`` have arguments of their own in
        :func:`synthetic`, :func:`shapes` and :func:`load_shakespeare`.
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
    if features is not None and name != "adult":
        raise checks.ArgumentError("features", f"must be left out: {name} has its inputs in one form", given=features)
    if name == "adult" and source != "tfds":  # scales some of its columns, and stores the result
        fed = adult.load_adult(data_dir, "columns" if features is None else features, normalize)
    elif name == "adult_hours" and source != "tfds":
        fed = adult.load_hours(data_dir, normalize)
    else:
        fed = normalized(_loaded(name, data_dir, source, allow_download), normalize)
    return hold_out(fed, validation_fraction, validation_seed)


def _loaded(name: str, data_dir: Place, source: str, allow_download: bool) -> FederatedDataset:
    """The data set from the first of its sources."""
    if source == "tfds":
        checks.one_of("name", name, tfds.DATASETS)
    else:
        try:
            return SOURCES[name].load(data_dir)
        except FileNotFoundError as error:
            if source == "files" or name not in tfds.DATASETS:
                raise
            if not allow_download and tfds.prepared(name, data_dir) is None:
                raise FileNotFoundError(
                    f"{error}; or let TFDS get it: fedjax-drag data prepare {name} --allow-download"
                ) from None
    if allow_download:
        preparing.prepare(name, data_dir=data_dir, allow_download=True)
    return tfds.load(name, data_dir)


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
